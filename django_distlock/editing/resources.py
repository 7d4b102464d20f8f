"""From model instances to resources and back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import models, router

from django_distlock.leases.records import Resource
from django_distlock.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.db.models import QuerySet


def resource_of(obj: models.Model | type[models.Model], pk: Any = None, database: str | None = None) -> Resource:
    """The resource of an instance, or of ``pk`` of a model.

    ``database`` is by default the one that the router writes the object to. ValueError for what is no primary key, and
    for an instance that is not saved yet: an add form has no lock.
    """
    if isinstance(obj, models.Model):
        if obj._state.adding or obj.pk is None:
            raise ValueError("An object that is not saved yet cannot be locked for editing.")
        model, pk = obj.__class__, obj.pk  # request.user is a SimpleLazyObject, whose type is no model
        database = database or router.db_for_write(model, instance=obj)
    else:
        model = obj
        database = database or router.db_for_write(model)
    return Resource(database, label_of(model), _text(model, pk), model._meta.label_lower, schema_of(database))


def database_of(queryset: Any) -> str:
    """The database that the objects of a queryset are written to: the one that the router names for each of them."""
    hints = queryset._hints
    if queryset._db:
        example = queryset.model()
        example._state.db = queryset._db
        hints = {"instance": example}
    return router.db_for_write(queryset.model, **hints)


def label_of(model: type[models.Model]) -> str:
    """The label under which the objects of a model are locked: that of its topmost concrete model."""
    return _top(model)._meta.label_lower


def _top(model: type[models.Model]) -> type[models.Model]:
    """The topmost concrete model whose primary key this one shares."""
    found = model._meta.concrete_model or model
    while (key := found._meta.pk) is not None and key.remote_field is not None and key.remote_field.parent_link:
        found = key.remote_field.model._meta.concrete_model or found
    return found


def _text(model: type[models.Model], pk: Any) -> str:
    """The exact text of a primary key. A composite one is a list in JSON."""
    if isinstance(pk, tuple):
        return json.dumps([str(part) for part in pk])
    return str(_python(model, pk))


def _python(model: type[models.Model], pk: Any) -> Any:
    """The primary key as its field has it. ValueError if it is none of this model."""
    field: Any = _top(model)._meta.pk
    while field.is_relation:  # a primary key that is a foreign key as well
        field = field.target_field
    try:
        return field.to_python(pk)
    except (ValidationError, TypeError) as error:  # TypeError: a text where a composite key wants a tuple
        raise ValueError(f"{pk!r} is no primary key of {label_of(model)}.") from error


def model_of(resource: Resource) -> type[models.Model]:
    """The model that the form edits. LookupError if it does not exist (any more)."""
    return apps.get_model(resource.kind or resource.model)


def pk_of(resource: Resource) -> Any:
    """The primary key as a Python value. ValueError if the text is not one of this model."""
    model = model_of(resource)
    top = _top(model)._meta.pk
    if isinstance(top, getattr(models, "CompositePrimaryKey", ())):
        parts: Any = top
        texts = json.loads(resource.pk)
        if not isinstance(texts, list) or len(texts) != len(parts.fields):
            raise ValueError(f"{resource.pk!r} is no primary key of {resource.model}.")
        return tuple(field.to_python(text) for field, text in zip(parts.fields, texts, strict=True))
    return _python(model, resource.pk)


def rows_of(resource: Resource) -> QuerySet[Any]:
    """The object in its database, past custom managers: a query of one row or none."""
    return model_of(resource)._base_manager.using(resource.database).filter(pk=pk_of(resource))


def objects_of(resources: Sequence[Resource]) -> dict[Resource, models.Model]:
    """The objects that exist, read from their databases with one query for each model."""
    groups: dict[tuple[str, str], list[Resource]] = {}
    for resource in resources:
        groups.setdefault((resource.database, resource.kind or resource.model), []).append(resource)
    found: dict[Resource, models.Model] = {}
    for (database, _), members in sorted(groups.items()):
        model = model_of(members[0])
        found.update(matched(members, model._base_manager.using(database).filter(among(members))))
    return found


def among(resources: Sequence[Resource]) -> models.Q:
    """The condition on the rows of objects of one model. A single key may be a number too large for its column."""
    keys = [pk_of(resource) for resource in resources]
    return models.Q(pk=keys[0]) if len(keys) == 1 else models.Q(pk__in=keys)


def matched(resources: Sequence[Resource], rows: QuerySet[Any]) -> dict[Resource, models.Model]:
    """The objects of ``rows`` by resource. A key that only the collation calls equal is another object."""
    by_key = {_text(type(row), row.pk): row for row in rows}
    return {resource: by_key[resource.pk] for resource in resources if resource.pk in by_key}
