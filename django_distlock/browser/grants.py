"""Grants: signed statements that a visitor may have the lock of a name. Clients cannot invent names."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from django_distlock.http import grants
from django_distlock.http.visitors import visitor_of
from django_distlock.leases.records import check_name
from django_distlock.validation import seconds

from .conf import config

if TYPE_CHECKING:
    from django.http import HttpRequest

SALT = "django_distlock.browser"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockGrant:
    """What a visitor may have; times in seconds. None: as in the setting."""

    name: str
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
        ttl=seconds("ttl", ttl, none=True, positive=True),
        max_hold=seconds("max_hold", max_hold, none=True, positive=True),
        audience=None if audience is None else _origin(audience),
    )
    # cache_page and the cache middleware must not store this page: it is for one visitor
    request._cache_update_cache = False  # type: ignore[attr-defined]
    facts = {key: value for key, value in asdict(grant).items() if value is not None}
    return grants.sign(SALT, visitor_of(request, config().label_of).signer, facts)


def read_grant(text: str, signer: str) -> LockGrant:
    """The grant in ``text``. GrantError if it is forged, out of date, or that of another visitor."""
    facts = grants.read(SALT, text, signer, config().grant_ttl)
    try:
        return LockGrant(**facts)
    except TypeError as error:
        raise grants.GrantError("forged") from error


def _origin(audience: str) -> str:
    """``scheme://host[:port]`` as browsers send it. ValueError for anything else."""
    parts = urlsplit(audience)
    usual = {"http": 80, "https": 443}.get(parts.scheme)  # the port that browsers leave out
    origin = f"{parts.scheme}://{parts.netloc}"
    if usual in (None, parts.port) or not parts.netloc or "@" in parts.netloc or audience != origin:
        raise ValueError(f'audience must be an origin such as "https://app.example.com", not {audience!r}.')
    return audience.lower()
