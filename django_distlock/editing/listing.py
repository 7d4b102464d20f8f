"""Who is editing: for pages with lists, for operators, and for ``distlock prune``."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import connections, models, router
from django.db.models import QuerySet

from django_distlock.schema import NOW, Pruner, schema_of

from . import store
from .conf import config
from .records import EditLease, Resource
from .resources import database_of, label_of, pk_of, resource_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .records import Editor

logger = logging.getLogger("django_distlock.editing")


def editors(objects: Iterable[models.Model], *, besides: str | None = None) -> dict[Any, Editor]:
    """Who edits the objects of a list page now, by primary key.

    One query. A queryset that was not evaluated yet is not read: it costs a second query only if an object of its model
    is being edited at all. ``besides`` leaves out a principal: the visitor.
    """
    if isinstance(objects, QuerySet) and objects._result_cache is None and not objects.query.is_sliced:
        return _of_queryset(objects, besides)
    saved = [obj for obj in objects if not obj._state.adding]
    resources = {resource_of(obj): obj.pk for obj in saved}
    rows = store.read(resources)
    found: dict[Any, Editor] = {}
    for resource, pk in resources.items():
        row = rows.get(resource.digest)
        if row is not None and (editor := _editor(row, besides)) is not None:
            found[pk] = editor
    return found


def _of_queryset(objects: QuerySet[Any], besides: str | None) -> dict[Any, Editor]:
    if not isinstance(objects.model._meta.pk, models.IntegerField):  # keys that a collation may mix up, or no columns
        return editors(list(objects), besides=besides)
    alias = config().database or database_of(objects)
    held = [row for row in store.held(alias, label_of(objects.model)) if _editor(row, besides) is not None]
    keys = {pk_of(row.resource): row for row in held}
    if keys:
        chosen = set(objects.filter(pk__in=list(keys)).values_list("pk", flat=True))
        keys = {pk: row for pk, row in keys.items() if pk in chosen}
    return {pk: editor for pk, row in keys.items() if (editor := row.editor) is not None}


def _editor(row: EditLease, besides: str | None) -> Editor | None:
    return None if row.owner is not None and row.owner.principal == besides else row.editor


def list_edits(database: str | None = None, *, model: str | None = None, limit: int | None = None) -> list[EditLease]:
    """Every object that is being edited now, the oldest hold first; in one database, or in all that may have some.

    ``model`` is a label such as "shop.invoice". BackendUnavailable if a database does not answer.
    """
    found = [
        row
        for alias in ([database] if database is not None else databases())
        for row in store.held(alias, model.lower() if model is not None else None, limit)
    ]
    return sorted(found, key=lambda row: row.since)[:limit]


def break_edit(obj: models.Model | Resource, *, reason: str = "") -> EditLease | None:
    """End the edit lock of an object. The holder's page learns of it at the next beat and keeps the text.

    Returns the lease that was ended; None if the object was free. Logged, and sent as the signal ``edit_broken``.
    """
    resource = obj if isinstance(obj, Resource) else resource_of(obj)
    if not resource.schema:
        resource = replace(resource, schema=schema_of(resource.database))
    ended = store.break_lease(resource, reason)
    if ended is not None and ended.owner is not None:
        logger.warning(
            "The edit lock of %s %s, held by %s, was broken: %s",
            resource.model,
            resource.pk,
            ended.owner.label,
            reason or "no reason was given",
        )
    return ended


def written_databases() -> list[str]:
    """The databases that the routers write models to."""
    return sorted({router.db_for_write(model) for model in apps.get_models() if model._meta.managed})


def databases() -> list[str]:
    """The databases that hold edit locks."""
    named = config().database
    return [
        alias
        for alias in ([named] if named else written_databases())
        if connections[alias].vendor in NOW and router.allow_migrate(alias, "django_distlock", model_name="weblease")
    ]


def sweep(database: str) -> int:
    """Delete the rows of one database that no rendered form can come back to. Returns their number."""
    return store.sweep(database, config().form_ttl)


# `distlock prune` deletes old rows; its days do not count, because a form may come back for as long as FORM_TTL says
pruner = Pruner(databases, lambda database, days: sweep(database))
