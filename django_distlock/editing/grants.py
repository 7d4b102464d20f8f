"""Grants: signed statements of what a form edits, for whom, and what it has shown. Clients cannot invent them."""

from __future__ import annotations

import time
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Literal

from django.apps import apps
from django.core import signing
from django.core.exceptions import FieldDoesNotExist
from django.db import connections

from . import store
from .conf import EditingConfig, config
from .records import Resource
from .resources import objects_of
from .versions import Inline, version_field_of, version_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db import models

    from .records import EditLease

SALT = "django_distlock.editing"


class GrantError(Exception):
    """The text is no grant for this user. ``reason`` is "forged", "expired" or "foreign"."""

    def __init__(self, reason: Literal["forged", "expired", "foreign"]) -> None:
        self.reason = reason
        super().__init__(f"The edit grant is {reason}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class EditGrant:
    """What a form may edit.

    The version is that of the first of ``resources``, its ``fields`` and ``inlines``; None checks no version.
    ``writes`` has the counters of all resources (None where there was no row); () checks none. ``until`` is seconds
    since 1970.
    """

    resources: tuple[Resource, ...]
    principal: str
    mode: str = "enforce"
    fields: tuple[str, ...] | None = None
    inlines: tuple[Inline, ...] = ()
    version: str | None = None
    writes: tuple[int | None, ...] = ()
    until: float = 0.0

    def __post_init__(self) -> None:
        if not self.resources or len({resource.database for resource in self.resources}) > 1:
            raise ValueError("A grant is for objects of one database.")
        if self.writes and len(self.writes) != len(self.resources):
            raise ValueError("A grant has a counter of writes for each resource, or none.")

    @property
    def resource(self) -> Resource:
        """The object itself; the others are edited along with it."""
        return self.resources[0]

    @property
    def database(self) -> str:
        return self.resource.database


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An object as a form is to show it: ``obj`` has the values that the version in ``grant`` is about."""

    grant: EditGrant
    obj: models.Model
    leases: dict[str, EditLease]


def open_grant(
    resources: Sequence[Resource],
    *,
    principal: str,
    fields: Sequence[str] | None = None,
    inlines: Sequence[Inline] = (),
    options: EditingConfig | None = None,
    leases: dict[str, EditLease] | None = None,
) -> Opened | None:
    """Read an object and make the grant of its form; None if the object does not exist.

    The counters are read *before* the object and its many-to-many rows: a save in between then refuses this form,
    where the other order would lose it. So build the form from ``obj``, and load nothing of it earlier; or read the
    rows of the counters first, and give them as ``leases``. Two SELECTs, and one for each inline.
    """
    options = options or config()
    leases = store.read(resources) if leases is None else leases
    obj = objects_of(resources[:1]).get(resources[0])
    if obj is None:
        return None
    database = resources[0].database
    own = version_field_of(type(obj))
    named = tuple(fields) if fields is not None else None
    if own is not None:
        named = (own,)
    rows = {inline: list(inline.rows(obj, database)) for inline in inlines}
    grant = EditGrant(
        resources=tuple(resources),
        principal=principal,
        mode=options.mode,
        fields=named,
        inlines=tuple(inlines),
        version=version_of(obj, named, rows),
        writes=tuple(_writes(leases.get(resource.digest)) for resource in resources),
        until=time.time() + options.form_ttl,
    )
    return Opened(grant=grant, obj=obj, leases=leases)


def _writes(row: EditLease | None) -> int | None:
    return None if row is None else row.writes


def sign(grant: EditGrant) -> str:
    """The grant as the value of a hidden field."""
    packed: dict[str, Any] = {
        "r": [astuple(resource) for resource in grant.resources],
        "p": grant.principal,
        "m": grant.mode,
        "f": grant.fields,
        "i": [[inline.model, inline.fk, inline.fields] for inline in grant.inlines],
        "v": grant.version,
        "w": grant.writes,
        "u": grant.until,
    }
    return signing.dumps(packed, salt=SALT, compress=True)


def read_grant(text: str, principal: str | None) -> EditGrant:
    """The grant in ``text``. GrantError if it is forged, out of date, or that of another principal.

    None for ``principal`` accepts any: enough to give a lease back whose id is known.
    """
    try:
        grant = _unpacked(signing.loads(text, salt=SALT))
    except (signing.BadSignature, KeyError, TypeError, ValueError) as error:
        raise GrantError("forged") from error
    if principal is not None and grant.principal != principal:
        raise GrantError("foreign")
    if grant.until < time.time() or not _is_known(grant):
        raise GrantError("expired")
    return grant


def _is_known(grant: EditGrant) -> bool:
    """Are its databases and the rows of its inlines still there? A form may be older than the code."""
    try:
        for inline in grant.inlines:
            apps.get_model(inline.model)._meta.get_field(inline.fk)
    except (LookupError, FieldDoesNotExist):
        return False
    return all(resource.database in connections.settings for resource in grant.resources)


def _unpacked(packed: Any) -> EditGrant:
    return EditGrant(
        resources=tuple(Resource(*parts) for parts in packed["r"]),
        principal=packed["p"],
        mode=packed["m"],
        fields=None if packed["f"] is None else tuple(packed["f"]),
        inlines=tuple(
            Inline(model=model, fk=fk, fields=None if fields is None else tuple(fields))
            for model, fk, fields in packed["i"]
        ),
        version=packed["v"],
        writes=tuple(packed["w"]),
        until=packed["u"],
    )
