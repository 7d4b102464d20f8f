"""What the pages of the admin show: inlines, markup inside their forms, and the objects of a deletion."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django.contrib.admin.utils import NestedObjects

from django_distlock.editing.http.forms import editable_fields
from django_distlock.editing.http.refusals import Refusal
from django_distlock.editing.resources import resource_of
from django_distlock.editing.versions import Inline
from django_distlock.leases import rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.db.models import Model
    from django.http import HttpRequest, HttpResponse

    from django_distlock.leases.records import Row

# Of a deletion that takes more objects along, only the leases of the first ones are read.
MOST_DELETED = 5000
BATCH = 500


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


def put_into_form(response: HttpResponse, form_id: str, markup: str) -> None:
    """Put ``markup`` behind the opening tag of a form, and switch off that browsers fill the form in again.

    The page is searched, and no template extended, so that templates of the site and of themes stay as they are.
    """
    pattern = rf'(<form\b[^>]*\bid="{re.escape(form_id)}"[^>]*)>'
    _put(response, pattern, lambda match: f"{_without_autocomplete(match[1])}>{markup}")


def put_before_confirmation(response: HttpResponse, markup: str) -> None:
    """Put ``markup`` into the form that asks whether to delete."""
    _put(response, r'<input\b[^>]*\bname="post"[^>]*>', lambda match: f"{markup}{match[0]}")


def _put(response: HttpResponse, pattern: str, replacement: Any) -> None:
    text = response.content.decode(response.charset)
    changed, count = re.subn(pattern, replacement, text, count=1)
    if count:
        response.content = changed.encode(response.charset)


def _without_autocomplete(tag: str) -> str:
    return tag if "autocomplete=" in tag else f'{tag} autocomplete="off"'


def deleted_along(objects: Any) -> list[Model]:
    """The objects, a list or a queryset of one database, and what their deletion takes along."""
    chosen = list(objects[:MOST_DELETED])
    if not chosen:
        return []
    collector = NestedObjects(using=resource_of(chosen[0]).database)
    collector.collect(chosen)
    found = [one for several in collector.model_objs.values() for one in several]
    return found[:MOST_DELETED]


def held_by_others(objects: Iterable[Model], principal: str) -> list[tuple[Model, Row]]:
    """The objects that another user edits now."""
    by_resource = {resource_of(obj): obj for obj in objects if obj.pk is not None}
    resources = list(by_resource)
    found: dict[str, Row] = {}
    for start in range(0, len(resources), BATCH):
        found.update(rows.read(resources[start : start + BATCH]))
    pairs = ((obj, found.get(resource.digest)) for resource, obj in by_resource.items())
    return [(obj, row) for obj, row in pairs if row is not None and row.is_held_by_another(principal)]


def sentence(obj: Any, row: Row) -> str:
    """An object and who edits it."""
    return f"{obj._meta.verbose_name} “{obj}”: {Refusal(reason='held', who=row.label).text}"
