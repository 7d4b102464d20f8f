"""Theirs and mine of a change form: the form itself, and its inlines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock.editing.http.forms import editable_fields
from django_distlock.editing.versions import Inline

if TYPE_CHECKING:
    from django.http import HttpRequest


def inlines_of(admin: Any, request: HttpRequest, obj: Any) -> list[Inline]:
    """The inlines that belong to the version: those by a foreign key to the object, whose rows the user may change."""
    found = []
    for kind, inline in admin.get_formsets_with_inlines(request, obj):
        if not (inline.has_change_permission(request, obj) or inline.has_delete_permission(request, obj)):
            continue
        key = getattr(kind, "fk", None)
        fields = editable_fields(kind.form)
        if key is not None and fields:
            found.append(Inline(model=kind.model._meta.label_lower, fk=key.name, fields=fields))
    return found
