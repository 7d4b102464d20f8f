"""Theirs and mine of a change form: the form itself, and its inlines."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from django_distlock.editing.http.forms import editable_fields
from django_distlock.editing.http.refusals import Group, compare, group_of_row
from django_distlock.editing.versions import Inline

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def groups_of(admin: Any, request: HttpRequest, obj: Any, current: Any) -> list[Group]:
    """What the page of a refused change shows. ``current`` is None if the object was deleted."""
    kind = admin.get_form(request, obj, change=True)
    mine = kind(request.POST, request.FILES, instance=copy(current if current is not None else obj))
    theirs = kind(instance=current) if current is not None else None
    groups = [Group(title=str(current if current is not None else obj), rows=compare(mine, theirs))]
    return [*groups, *_inline_groups(admin, request, obj, current)]


def _inline_groups(admin: Any, request: HttpRequest, obj: Any, current: Any) -> Iterator[Group]:
    prefixes: dict[str, int] = {}
    for kind, inline in admin.get_formsets_with_inlines(request, obj):
        prefix = kind.get_default_prefix()
        prefixes[prefix] = prefixes.get(prefix, 0) + 1
        if prefixes[prefix] != 1 or not prefix:
            prefix = f"{prefix}-{prefixes[prefix]}"
        parent = copy(current if current is not None else obj)
        mine = kind(request.POST, request.FILES, instance=parent, prefix=prefix, queryset=inline.get_queryset(request))
        if not mine.management_form.is_valid():
            continue
        for form in mine.forms:
            if (group := group_of_row(kind, form)) is not None:
                yield group
