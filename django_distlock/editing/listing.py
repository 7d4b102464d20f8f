"""Who is editing: for pages with lists, for operators, and for ``distlock prune``."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.contrib.admin.utils import quote
from django.db import connections, models, router
from django.db.models import QuerySet
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import one_line
from django_distlock.leases import rows, upkeep
from django_distlock.leases.checks import has_table
from django_distlock.leases.records import Resource, Row
from django_distlock.operations.commands.leases import LeaseCommand
from django_distlock.operations.leases import Held, Leases
from django_distlock.schema import Pruner, schema_of

from .conf import config
from .records import editor_of
from .resources import database_of, label_of, objects_of, pk_of, resource_of
from .signals import edit_broken

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.contrib.admin import AdminSite
    from django.http import HttpRequest

    from .records import Editor

logger = logging.getLogger("django_distlock.editing")
# Leases of one model that the filters and actions of an admin look through.
MOST_HELD = 5_000


def editors(objects: Iterable[models.Model], *, besides: str | None = None) -> dict[Any, Editor]:
    """Who edits the objects of a list page now, by primary key.

    One query. A queryset that was not evaluated yet is not read: it costs a second query only if an object of its model
    is being edited at all. ``besides`` leaves out a principal: the visitor.
    """
    if isinstance(objects, QuerySet) and objects._result_cache is None and not _is_final(objects.query):
        return _of_queryset(objects, besides)
    resources = {resource_of(obj): obj.pk for obj in objects if not obj._state.adding}
    present = rows.read(resources)
    return _editors({pk: row for each, pk in resources.items() if (row := present.get(each.digest))}, besides)


def _editors(found: dict[Any, Row], besides: str | None) -> dict[Any, Editor]:
    return {pk: editor for pk, row in found.items() if row.principal != besides and (editor := editor_of(row))}


def _is_final(query: Any) -> bool:
    """A slice or a union takes no further filter."""
    return bool(query.is_sliced or query.combinator)


def _of_queryset(objects: QuerySet[Any], besides: str | None) -> dict[Any, Editor]:
    if not isinstance(objects.model._meta.pk, models.IntegerField):  # keys that a collation may mix up, or no columns
        return editors(list(objects), besides=besides)
    found = _editors(held_of(objects.model, database_of(objects), None), besides)
    chosen = set(objects.filter(pk__in=list(found)).values_list("pk", flat=True)) if found else ()
    return {pk: editor for pk, editor in found.items() if pk in chosen}


def held_of(model: type[models.Model], database: str, most: int | None = MOST_HELD) -> dict[Any, Row]:
    """The leases of the objects of a model that are edited now, by primary key; at most the ``most`` oldest ones."""
    found = {}
    for held in edit_leases.held(database, [label_of(model)], most):
        with suppress(ValueError):
            found[pk_of(replace(held.resource, kind=model._meta.label_lower))] = held.row
    return found


def written_databases() -> list[str]:
    """The databases that the routers write models to."""
    return sorted({router.db_for_write(model) for model in apps.get_models() if model._meta.managed})


class EditLeases(Leases):
    """Edit locks, for the subcommand and the admin's page of held locks."""

    kind = "edits"
    help = "List the objects that are being edited, and end an edit lock with --break."
    nothing = "Nothing is being edited."
    arguments = ("model", "pk")

    def databases(self) -> list[str]:
        return [alias for alias in written_databases() if has_table(alias)]

    def held(self, database: str, names: Sequence[str] = (), limit: int | None = None) -> list[Held]:
        model, pk = (*names, None, None)[:2]
        schemas = {schema_of(each) for each in connections}  # of the tenants that a connection of this thread works in
        most = limit if pk is None and schemas == {""} else None
        found = upkeep.held(database, of_objects=True, model=model and model.lower(), limit=most)
        all_named = [(Resource(database, row.model, row.name, schema=each), row) for row in found for each in schemas]
        ours = [Held(resource, row) for resource, row in all_named if resource.digest == row.digest]
        return [each for each in ours if pk in (None, each.row.name)][:limit]

    def end(self, held: Held, reason: str) -> bool:
        """Its page learns of it at the next beat and keeps the text. Also sent as the signal ``edit_broken``."""
        row = held.row
        ended = upkeep.break_lease(held.resource, row.fence)
        if ended is not None:
            edit_broken.send_robust(sender=Row, resource=held.resource, before=ended, reason=reason)
            message = "The edit lock of %s, held by %s, was broken: %s"
            logger.warning(message, one_line(held.what), one_line(row.label), one_line(reason or "-"))
        return ended is not None

    def as_data(self, held: Held) -> dict[str, Any]:
        """See docs/editing/."""
        row = held.row
        return {"database": held.database, "model": row.model, "pk": row.name, "edited_by": row.label}

    def shown(self, found: Sequence[Held], request: HttpRequest, site: AdminSite) -> list[tuple[str, str | None]]:
        """The name of an object is for those who may see objects of its model."""
        resources = [each.resource for each in found if _model(each) is not None]
        try:
            objects = {resource.digest: obj for resource, obj in objects_of(resources).items()}
        except (ValueError, LookupError):  # rows of a model that has changed its primary key
            objects = {}
        return [self._shown(each, objects.get(each.row.digest), request, site) for each in found]

    @staticmethod
    def _shown(each: Held, obj: Any, request: HttpRequest, site: AdminSite) -> tuple[str, str | None]:
        model = _model(each)
        if model is None:
            return each.what, None
        app, name = model._meta.app_label, model._meta.model_name
        if not any(request.user.has_perm(f"{app}.{verb}_{name}") for verb in ("view", "change")):
            return f"{model._meta.verbose_name} {each.row.name}", None
        text = f"{model._meta.verbose_name} {each.row.name if obj is None else obj}"
        try:
            return text, reverse(f"admin:{app}_{name}_change", args=[quote(each.row.name)], current_app=site.name)
        except NoReverseMatch:  # no admin, or none at this site
            return text, None

    def ended(self, held: Held, request: HttpRequest, reason: str) -> None:
        """An entry in the history of the object."""
        from .http.audit import log

        if _model(held) is not None:
            facts = {"who": held.row.label, "reason": reason or "-"}
            log(request, held.resource, _("Broke the edit lock of %(who)s. Reason: %(reason)s") % facts)


def _model(held: Held) -> Any:
    try:
        return apps.get_model(held.row.model)
    except (LookupError, ValueError):
        return None


edit_leases = EditLeases()
# its days do not count: a form may come back for as long as FORM_TTL says
pruner = Pruner(
    edit_leases.databases, lambda database, days: upkeep.sweep(database, config().form_ttl, of_objects=True)
)


class Edits(LeaseCommand):
    help = EditLeases.help
    leases = edit_leases
