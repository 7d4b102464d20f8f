"""Takeovers and their record: in the admin's log where it is installed, in that of the process, and as a signal."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.utils.translation import gettext as _

from django_distlock.editing.resources import model_of
from django_distlock.editing.signals import edit_taken_over
from django_distlock.http.visitors import user_of
from django_distlock.leases import rows
from django_distlock.leases.records import Row

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_distlock.http.visitors import Visitor
    from django_distlock.leases.records import Busy, Resource

logger = logging.getLogger("django_distlock.editing")


def take_over(
    request: HttpRequest,
    visitor: Visitor,
    resource: Resource,
    before: Row | None,
    lease: str,
    ttl: float,
    reason: str,
) -> Row | Busy:
    """Take the object over from the holder of ``before``, and record it. Permission is the caller's."""
    found = rows.take("takeover", resource, visitor, lease, ttl)
    if not isinstance(found, Row):
        return found
    told = {"owner": visitor, "before": before, "lease": found, "reason": reason}
    edit_taken_over.send_robust(sender=Row, resource=resource, **told)
    who = before.label if before is not None and before.held else ""
    logger.info("%s took %s %s over from %s: %s", visitor.label, resource.model, resource.pk, who or "nobody", reason)
    log(
        request,
        resource,
        _("Took over the editing from %(holder)s. Reason: %(reason)s")
        % {"holder": who or "-", "reason": reason or "-"},
    )
    return found


def log(request: HttpRequest, resource: Resource, message: str) -> None:
    """Write an entry to the history of the object in the admin, which has users of AUTH_USER_MODEL only."""
    user = user_of(request)
    if not apps.is_installed("django.contrib.admin") or not isinstance(user, get_user_model()):
        return
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.contenttypes.models import ContentType

    entry: dict[str, Any] = {
        "user_id": user.pk,
        "content_type_id": ContentType.objects.get_for_model(model_of(resource), for_concrete_model=False).pk,
        "object_id": resource.pk,
        "object_repr": f"{resource.kind or resource.model} {resource.pk}"[:200],
        "action_flag": CHANGE,
        "change_message": message,
    }
    LogEntry.objects.create(**entry)
