"""Grants: signed statements that a visitor may have the lock of a name. Clients cannot invent names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from django.core import signing

from django_distlock.http.visitors import visitor_of
from django_distlock.leases.records import check_name
from django_distlock.validation import seconds

from .conf import config

if TYPE_CHECKING:
    from django.http import HttpRequest

SALT = "django_distlock.browser"


class LockGrantError(Exception):
    """The text is no grant for this visitor.

    ``reason`` is "forged", "expired", "foreign" (of another visitor, ``signer``, or for another host) or "audience":
    the request comes from another origin than the grant is for.
    """

    def __init__(self, reason: Literal["forged", "expired", "foreign", "audience"], signer: str = "") -> None:
        self.reason = reason
        self.signer = signer
        super().__init__(f"The grant is {reason}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockGrant:
    """What a visitor may have; times in seconds. None: as in the setting."""

    name: str
    signer: str
    ttl: float | None = None
    max_hold: float | None = None
    audience: str | None = None


def lock_grant(
    name: str,
    request: HttpRequest,
    *,
    ttl: float | None = None,
    max_hold: float | None = None,
    audience: str | None = None,
) -> str:
    """Sign a grant: the sender of ``request`` may have the lock ``name`` for ``GRANT_TTL`` seconds.

    A lease lives for ``ttl`` seconds after each renewal, and ends ``max_hold`` seconds after it was acquired.
    ``audience`` is the origin of a front end on another host, such as ``"https://app.example.com"``: the grant then
    counts in its requests only. Check the permission before you sign, or name it in ``DISTLOCK_BROWSER``.

    Put the tenant into the name if tenants share a database: a grant counts on its host only, a name is one everywhere.
    """
    grant = LockGrant(
        name=check_name(name),
        signer=visitor_of(request, config().label_of).signer,
        ttl=seconds("ttl", ttl, none=True, positive=True),
        max_hold=seconds("max_hold", max_hold, none=True, positive=True),
        audience=None if audience is None else _origin(audience),
    )
    # cache_page and the cache middleware must not store this page: it is for one visitor
    request._cache_update_cache = False  # type: ignore[attr-defined]
    return sign(grant)


def sign(grant: LockGrant) -> str:
    """The grant as a text for the client."""
    return signing.dumps({key: value for key, value in asdict(grant).items() if value is not None}, salt=SALT)


def read_grant(text: str, signer: str) -> LockGrant:
    """The grant in ``text``. LockGrantError if it is forged, out of date, or that of another visitor."""
    try:
        grant = LockGrant(**signing.loads(text, salt=SALT, max_age=timedelta(seconds=config().grant_ttl)))
    except signing.SignatureExpired as error:
        raise LockGrantError("expired") from error
    except (signing.BadSignature, TypeError, ValueError) as error:
        raise LockGrantError("forged") from error
    if grant.signer != signer:
        raise LockGrantError("foreign", grant.signer)
    return grant


def _origin(audience: str) -> str:
    """``scheme://host[:port]`` as browsers send it. ValueError for anything else."""
    parts = urlsplit(audience)
    usual = {"http": 80, "https": 443}.get(parts.scheme)  # the port that browsers leave out
    origin = f"{parts.scheme}://{parts.netloc}"
    if usual in (None, parts.port) or not parts.netloc or "@" in parts.netloc or audience != origin:
        raise ValueError(f'audience must be an origin such as "https://app.example.com", not {audience!r}.')
    return audience.lower()
