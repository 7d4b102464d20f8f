"""The edit locks on the admin's page of held locks: which object, who, since when; and a button that ends one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.contrib import messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import one_line
from django_distlock.editing import store
from django_distlock.editing.http.audit import log
from django_distlock.editing.listing import break_edit, databases, list_edits
from django_distlock.editing.records import Resource
from django_distlock.editing.resources import objects_of
from django_distlock.operations.admin.sections import MOST_SHOWN, LeaseSection
from django_distlock.schema import schema_of

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_distlock.editing.records import EditLease


class EditLocksSection(LeaseSection):
    """The part of the page of held locks that is about edit locks."""

    kind = "edit"
    template = "admin/django_distlock/heldlock/edits.html"

    def rows(self, held: Any, request: HttpRequest) -> list[dict[str, Any]]:
        found = list_edits(limit=MOST_SHOWN)
        return [self._shown(held, request, row, obj) for row, obj in self._with_objects(found)]

    def _with_objects(self, rows: list[EditLease]) -> list[tuple[EditLease, Any]]:
        known = [row.resource for row in rows if _model(row.resource) is not None]
        try:
            found: dict[Resource, Any] = dict(objects_of(known))
        except (ValueError, LookupError):  # rows of a model that has changed its primary key
            found = {}
        return [(row, found.get(row.resource)) for row in rows]

    def _shown(self, held: Any, request: HttpRequest, row: EditLease, obj: Any) -> dict[str, Any]:
        """The cells of one row. The name of an object is for those who may see objects of its model."""
        model = _model(row.resource)
        name = str(model._meta.verbose_name) if model is not None else row.resource.model
        meta = None if model is None else model._meta
        visible = meta is not None and any(
            request.user.has_perm(f"{meta.app_label}.{verb}_{meta.model_name}") for verb in ("view", "change")
        )
        return {
            "kind": name,
            "object": one_line(obj, 200) if visible and obj is not None else one_line(row.resource.pk, 200),
            "url": _change_url(held, row, model) if visible else None,
            "who": one_line(row.owner.label if row.owner is not None else "", 200),
            "since": row.since,
            "sent": {
                "database": row.resource.database,
                "model": row.resource.model,
                "pk": row.resource.pk,
                "fence": str(row.fence),
            },
        }

    def end(self, request: HttpRequest, reason: str) -> None:
        given = {name: request.POST.get(name, "") for name in ("database", "model", "pk", "fence")}
        if given["database"] not in databases():
            raise PermissionDenied
        resource = Resource(given["database"], given["model"], given["pk"], schema=schema_of(given["database"]))
        row = store.read([resource]).get(resource.digest)
        if row is None or not row.held or str(row.fence) != given["fence"]:
            messages.warning(request, _("The edit lock has changed hands or has ended; it was not broken."))
        elif (ended := break_edit(resource, reason=reason)) is not None:
            who = ended.owner.label if ended.owner is not None else ""
            if _model(resource) is not None:
                log(
                    request,
                    resource,
                    _("Broke the edit lock of %(who)s. Reason: %(reason)s") % {"who": who, "reason": reason or "-"},
                )
            messages.success(request, _("The edit lock of %(who)s was broken.") % {"who": who})


def _model(resource: Resource) -> Any:
    try:
        return apps.get_model(resource.model)
    except (LookupError, ValueError):
        return None


def _change_url(held: Any, row: EditLease, model: Any) -> str | None:
    if model not in held.admin_site._registry:
        return None
    try:
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
        return reverse(name, args=[quote(row.resource.pk)], current_app=held.admin_site.name)
    except NoReverseMatch:
        return None
