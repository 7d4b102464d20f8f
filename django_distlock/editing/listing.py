"""Who is editing: for pages with lists, for operators, and for ``distlock prune``."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from django.apps import apps
from django.contrib.admin.utils import quote
from django.db import models, router
from django.db.models import QuerySet
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import one_line
from django_distlock.leases.checks import has_table
from django_distlock.operations.commands.leases import LeaseCommand
from django_distlock.operations.leases import Held, Leases
from django_distlock.schema import Pruner

from . import store
from .conf import config
from .resources import database_of, label_of, objects_of, pk_of, resource_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from django.contrib.admin import AdminSite
    from django.http import HttpRequest

    from .records import EditLease, Editor, Resource

logger = logging.getLogger("django_distlock.editing")


def editors(objects: Iterable[models.Model], *, besides: str | None = None) -> dict[Any, Editor]:
    """Who edits the objects of a list page now, by primary key.

    One query. A queryset that was not evaluated yet is not read: it costs a second query only if an object of its model
    is being edited at all. ``besides`` leaves out a principal: the visitor.
    """
    if isinstance(objects, QuerySet) and objects._result_cache is None and not _is_final(objects.query):
        return _of_queryset(objects, besides)
    resources = {resource_of(obj): obj.pk for obj in objects if not obj._state.adding}
    rows = store.read(resources)
    found: dict[Any, Editor] = {}
    for resource, pk in resources.items():
        row = rows.get(resource.digest)
        if row is not None and row.editor is not None and row.principal != besides:
            found[pk] = row.editor
    return found


def _is_final(query: Any) -> bool:
    """A slice or a union takes no further filter."""
    return bool(query.is_sliced or query.combinator)


def _of_queryset(objects: QuerySet[Any], besides: str | None) -> dict[Any, Editor]:
    if not isinstance(objects.model._meta.pk, models.IntegerField):  # keys that a collation may mix up, or no columns
        return editors(list(objects), besides=besides)
    held = store.held(database_of(objects), label_of(objects.model))
    keys = {pk_of(row.resource): row.editor for row in held if row.principal != besides}
    chosen = set(objects.filter(pk__in=list(keys)).values_list("pk", flat=True)) if keys else ()
    return {pk: editor for pk, editor in keys.items() if pk in chosen and editor is not None}


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
        found = store.held(database, None if model is None else model.lower(), limit)
        return [Held(database, row) for row in found if pk in (None, row.name)]

    def end(self, held: Held, reason: str) -> bool:
        """Its page learns of it at the next beat and keeps the text. Also sent as the signal ``edit_broken``."""
        row = held.row
        ended = store.break_lease(_resource_of(held), reason, fence=row.fence)
        if ended is not None:
            message = "The edit lock of %s, held by %s, was broken: %s"
            logger.warning(message, one_line(held.what), one_line(row.label), one_line(reason or "-"))
        return ended is not None

    def as_data(self, held: Held) -> dict[str, Any]:
        """See docs/editing/."""
        row = held.row
        return {"database": held.database, "model": row.model, "pk": row.name, "edited_by": row.label}

    def shown(self, found: Sequence[Held], request: HttpRequest, site: AdminSite) -> list[tuple[str, str | None]]:
        """The name of an object is for those who may see objects of its model."""
        resources = [_resource_of(each) for each in found if _model(each) is not None]
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
            log(request, _resource_of(held), _("Broke the edit lock of %(who)s. Reason: %(reason)s") % facts)


def _resource_of(held: Held) -> Resource:
    return cast("EditLease", held.row).resource


def _model(held: Held) -> Any:
    try:
        return apps.get_model(held.row.model)
    except (LookupError, ValueError):
        return None


edit_leases = EditLeases()
# its days do not count: a form may come back for as long as FORM_TTL says
pruner = Pruner(edit_leases.databases, lambda database, days: store.sweep(database, config().form_ttl))


class Edits(LeaseCommand):
    help = EditLeases.help
    leases = edit_leases
