"""The record of takeovers: an entry in the admin's log where it is installed, and in the log of the process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import models
from django.utils.translation import gettext as _

from django_distlock.editing.resources import model_of
from django_distlock.http.visitors import user_of

if TYPE_CHECKING:
    from django.http import HttpRequest

    from django_distlock.editing.records import EditLease, Resource
    from django_distlock.http.visitors import Visitor

logger = logging.getLogger("django_distlock.editing")


def log_takeover(
    request: HttpRequest, visitor: Visitor, resource: Resource, holder: EditLease | None, reason: str
) -> None:
    """Record that the sender took the object over from ``holder``."""
    who = holder.owner.label if holder is not None and holder.held and holder.owner is not None else ""
    logger.info("%s took %s %s over from %s: %s", visitor.label, resource.model, resource.pk, who or "nobody", reason)
    log(
        request,
        resource,
        _("Took over the editing from %(holder)s. Reason: %(reason)s")
        % {"holder": who or "-", "reason": reason or "-"},
    )


def log(request: HttpRequest, resource: Resource, message: str) -> None:
    """Write an entry to the history of the object in the admin."""
    user = user_of(request)
    if user is None or not isinstance(user, models.Model) or not apps.is_installed("django.contrib.admin"):
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
