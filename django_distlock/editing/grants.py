"""Grants: signed statements of what a form edits, for whom, and what it has shown. Clients cannot invent them."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.exceptions import FieldDoesNotExist, ObjectDoesNotExist
from django.db import connections

from django_distlock.http import grants
from django_distlock.http.grants import GrantError
from django_distlock.leases import rows
from django_distlock.leases.records import Resource

from .conf import EditingConfig, config
from .resources import resource_of
from .versions import Inline, version_field_of, version_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from django.db import models

    from django_distlock.leases.records import Row

SALT = "django_distlock.editing"


@dataclass(frozen=True, slots=True, kw_only=True)
class EditGrant:
    """What a form may edit.

    The version is that of the first of ``resources``, its ``fields`` and ``inlines``; None checks no version.
    ``writes`` has the counters of all resources (None where there was no row); () checks none.
    """

    resources: tuple[Resource, ...]
    principal: str
    mode: str = "enforce"
    fields: tuple[str, ...] | None = None
    inlines: tuple[Inline, ...] = ()
    version: str | None = None
    writes: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        if not self.resources or len({resource.database for resource in self.resources}) > 1:
            raise ValueError("A grant is for objects of one database.")

    @property
    def resource(self) -> Resource:
        """The object itself; the others are edited along with it."""
        return self.resources[0]

    @property
    def database(self) -> str:
        return self.resource.database


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyForm:
    """The grant of a form that is about to be rendered.

    ``leases`` has the row of the object, by its digest. A form that is shown again, with errors, has the ``text`` of
    the grant and the ``lease`` that were posted. ``refused``: it is, because its save was; with ``can_overwrite`` the
    visitor may take over and save.
    """

    grant: EditGrant
    config: EditingConfig
    leases: Mapping[str, Row] = field(default_factory=dict)
    text: str = ""
    lease: str = ""
    refused: bool = False
    can_overwrite: bool = False


def open_grant(
    obj: models.Model,
    *,
    principal: str,
    fields: Sequence[str] | None = None,
    inlines: Sequence[Inline] = (),
    options: EditingConfig | None = None,
    leases: dict[str, Row] | None = None,
) -> ReadyForm | None:
    """Read an object again and make the grant of its form; None if the object does not exist any more.

    The counter is read *before* the object and its many-to-many rows: a save in between then refuses this form, where
    the other order would lose it. So build the form from ``obj`` afterwards, and load nothing of it earlier; or read
    the row of the counter first, and give it as ``leases``. Two SELECTs, and one for each inline.
    """
    options = options or config()
    resource = resource_of(obj)
    leases = rows.read([resource]) if leases is None else leases
    try:
        obj.refresh_from_db(from_queryset=obj.__class__._base_manager.using(resource.database))
    except ObjectDoesNotExist:
        return None
    own = version_field_of(obj.__class__)
    named = tuple(fields) if fields is not None else None
    if own is not None:
        named = (own,)
    children = {inline: list(inline.rows(obj, resource.database)) for inline in inlines}
    grant = EditGrant(
        resources=(resource,),
        principal=principal,
        mode=options.mode,
        fields=named,
        inlines=tuple(inlines),
        version=version_of(obj, named, children),
        writes=(row.writes if (row := leases.get(resource.digest)) else None,),
    )
    return ReadyForm(grant=grant, config=options, leases=leases)


def sign(grant: EditGrant) -> str:
    """The grant as the value of a hidden field."""
    resources, inlines = map(astuple, grant.resources), map(astuple, grant.inlines)
    facts = [*resources], grant.mode, grant.fields, [*inlines], grant.version, grant.writes
    return grants.sign(SALT, grant.principal, facts)


def read_grant(text: str, principal: str) -> EditGrant:
    """The grant in ``text``. GrantError if it is forged, out of date, or that of another principal."""
    try:
        resources, mode, fields, inlines, version, writes = grants.read(SALT, text, principal, config().form_ttl)
        grant = EditGrant(
            resources=tuple(Resource(*parts) for parts in resources),
            principal=principal,
            mode=mode,
            fields=_tuple(fields),
            inlines=tuple(Inline(model=model, fk=fk, fields=_tuple(names)) for model, fk, names in inlines),
            version=version,
            writes=tuple(writes),
        )
    except (TypeError, ValueError) as error:
        raise GrantError("forged") from error
    if not _is_known(grant):
        raise GrantError("expired")
    return grant


def _tuple(found: list[str] | None) -> tuple[str, ...] | None:
    return None if found is None else tuple(found)


def _is_known(grant: EditGrant) -> bool:
    """Are its databases and the rows of its inlines still there? A form may be older than the code."""
    try:
        for inline in grant.inlines:
            apps.get_model(inline.model)._meta.get_field(inline.fk)
    except (LookupError, FieldDoesNotExist):
        return False
    return all(resource.database in connections.settings for resource in grant.resources)
