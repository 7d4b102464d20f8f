"""The browser locks on the admin's page of held locks: which name, who, since when; and a button that ends one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.utils.translation import gettext as _

from django_distlock import BackendUnavailable
from django_distlock.concurrency.text import one_line
from django_distlock.operations.admin.sections import MOST_SHOWN, LeaseSection

from .listing import break_browser_lock, databases, list_browser_locks

if TYPE_CHECKING:
    from django.http import HttpRequest

LONGEST_TEXT = 200


class BrowserLocksSection(LeaseSection):
    """The part of the page of held locks that is about browser locks."""

    kind = "browser"
    template = "admin/django_distlock/heldlock/browser.html"

    def rows(self, held: Any, request: HttpRequest) -> list[dict[str, Any]]:
        return [
            {
                "name": one_line(row.name, LONGEST_TEXT),
                "who": one_line(row.label, LONGEST_TEXT),
                "principal": one_line(row.principal, LONGEST_TEXT),
                "since": row.since,
                "sent": {"name": row.name, "fence": str(row.fence)},
            }
            for row in (list_browser_locks(limit=MOST_SHOWN) if databases() else [])
        ]

    def end(self, request: HttpRequest, reason: str) -> None:
        try:
            found = list_browser_locks(request.POST.get("name", ""))
        except ValueError as error:
            raise PermissionDenied from error
        row = next((row for row in found if str(row.fence) == request.POST.get("fence")), None)
        why = f"{request.user}: {reason or '-'}"
        try:
            broken = row is not None and break_browser_lock(row, reason=why)
        except BackendUnavailable:
            messages.warning(request, _("A request under this browser lock is in progress; it was not broken."))
            return
        if row is None or not broken:
            messages.warning(request, _("The browser lock has changed hands or has ended; it was not broken."))
        else:
            messages.success(request, _("The browser lock of %(who)s was broken.") % {"who": row.label})
