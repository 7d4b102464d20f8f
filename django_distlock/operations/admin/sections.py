"""Base class of the tables of users' leases on the page of held locks: edit locks, browser locks."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import path, reverse

from django_distlock import BackendUnavailable
from django_distlock.concurrency.text import one_line

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

logger = logging.getLogger("django_distlock.operations")
MOST_SHOWN = 100
LONGEST_REASON = 500


class LeaseSection(ABC):
    """A table with a button in each row that ends the lease, if the holder that was shown still has it."""

    kind: ClassVar[str]  # in the address of the button
    template: ClassVar[str]

    @abstractmethod
    def rows(self, held: Any, request: HttpRequest) -> list[dict[str, Any]]:
        """What the template shows of each lease; ``sent`` has the hidden fields of its button."""

    @abstractmethod
    def end(self, request: HttpRequest, reason: str) -> None:
        """End the lease that the form describes, and say so. PermissionDenied for fields that no form has."""

    def urls(self, held: Any) -> list[Any]:
        """The address of the button."""
        view = held.admin_site.admin_view(lambda request: self._break(held, request))
        return [path(f"{self.kind}/break/", view, name=f"django_distlock_heldlock_break_{self.kind}")]

    def html(self, held: Any, request: HttpRequest) -> str:
        """The table; empty if there is no lease."""
        try:
            rows = self.rows(held, request)
        except BackendUnavailable:
            logger.warning("The leases of %s cannot be read.", self.kind, exc_info=True)
            return ""
        if not rows:
            return ""
        address = reverse(f"admin:django_distlock_heldlock_break_{self.kind}", current_app=held.admin_site.name)
        context = {
            "rows": rows,
            "break_url": address if held.has_break_permission(request) else None,
            "longest_reason": LONGEST_REASON,
        }
        return render_to_string(self.template, context, request)

    def _break(self, held: Any, request: HttpRequest) -> HttpResponse:
        if request.method != "POST" or not held.has_break_permission(request):
            raise PermissionDenied
        self.end(request, one_line(" ".join(request.POST.get("reason", "").split()), LONGEST_REASON))
        address = reverse("admin:django_distlock_heldlock_changelist", current_app=held.admin_site.name)
        return HttpResponseRedirect(address)
