"""The table of leases of pages in browsers, below the list of held locks: edit locks and browser locks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import path, reverse
from django.utils.translation import gettext as _

from django_distlock import BackendUnavailable
from django_distlock.concurrency.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpRequest, HttpResponse

    from django_distlock.operations.leases import Held, Leases

logger = logging.getLogger("django_distlock.operations")
MOST_SHOWN = 100
LONGEST_REASON, LONGEST_TEXT = 500, 200


class LeaseSection:
    """A table with a button in each row that ends the lease, if the holder that was shown still has it."""

    def __init__(self) -> None:
        self.features: list[Leases] = []

    def urls(self, held: Any) -> list[Any]:
        """The address of the button."""
        view = held.admin_site.admin_view(lambda request: self._break(held, request))
        return [path("lease/break/", view, name="django_distlock_heldlock_break_lease")]

    def html(self, held: Any, request: HttpRequest) -> str:
        """The table; empty if there is no lease."""
        rows = [row for feature in self.features for row in self._rows(feature, held, request)]
        if not rows:
            return ""
        address = reverse("admin:django_distlock_heldlock_break_lease", current_app=held.admin_site.name)
        context = {
            "rows": rows,
            "break_url": address if held.has_break_permission(request) else None,
            "longest_reason": LONGEST_REASON,
        }
        return render_to_string("admin/django_distlock/heldlock/leases.html", context, request)

    def _rows(self, feature: Leases, held: Any, request: HttpRequest) -> Iterable[dict[str, Any]]:
        try:
            found = feature.all_held(limit=MOST_SHOWN)
        except BackendUnavailable:
            logger.warning("The leases of %s cannot be read.", feature.kind, exc_info=True)
            return
        for each, (what, url) in zip(found, feature.shown(found, request, held.admin_site), strict=True):
            yield {
                "what": one_line(what, LONGEST_TEXT),
                "url": url,
                "who": one_line(each.row.label, LONGEST_TEXT),
                "principal": one_line(each.row.principal, LONGEST_TEXT),
                "since": each.row.since,
                "sent": {"kind": feature.kind, "lease": _id_of(each)},
            }

    def _break(self, held: Any, request: HttpRequest) -> HttpResponse:
        if request.method != "POST" or not held.has_break_permission(request):
            raise PermissionDenied
        self._end(request, one_line(" ".join(request.POST.get("reason", "").split()), LONGEST_REASON))
        address = reverse("admin:django_distlock_heldlock_changelist", current_app=held.admin_site.name)
        return HttpResponseRedirect(address)

    def _end(self, request: HttpRequest, reason: str) -> None:
        """End the lease that the form names, among those that are held now, and say so."""
        kind, sent = request.POST.get("kind", ""), request.POST.get("lease", "")
        feature, database = self._place(kind, sent)
        try:
            found = feature.held(database) if feature is not None else []
        except BackendUnavailable as error:
            text = _("%(alias)s does not answer (%(error)s); nothing was broken there.")
            messages.error(request, text % {"alias": database, "error": type(error.__cause__ or error).__name__})
            return
        try:
            for each in found:
                if _id_of(each) == sent and feature.end(each, f"{request.user}: {reason or '-'}"):
                    feature.ended(each, request, reason)
                    messages.success(request, _("The lock of %(who)s was broken.") % {"who": each.row.label})
                    return
        except BackendUnavailable:
            messages.warning(request, _("A request under this lock is in progress; it was not broken."))
            return
        messages.warning(request, _("The lock has changed hands or has ended; it was not broken."))

    def _place(self, kind: str, sent: str) -> Any:
        """The feature and the database of the lease in the form: no other one has to answer."""
        for feature in self.features:
            for database in feature.databases() if feature.kind == kind else ():
                if sent.startswith(f"{database} "):
                    return feature, database
        return None, ""


def _id_of(each: Held) -> str:
    """One lease, by its object or name and its fence."""
    return f"{each.database} {each.row.digest} {each.row.fence}"
