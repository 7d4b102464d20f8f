"""The table of leases of pages in browsers, below the list of held locks: edit locks and browser locks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.template.loader import render_to_string
from django.utils.translation import gettext as _

from django_distlock import BackendUnavailable
from django_distlock.concurrency.text import one_line

from .breaking import LONGEST_REASON

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.contrib.admin import AdminSite
    from django.http import HttpRequest

    from django_distlock.operations.leases import Held, Leases

logger = logging.getLogger("django_distlock.operations")
MOST_SHOWN = 100
LONGEST_TEXT = 200

# django_distlock.admin adds them.
features: list[Leases] = []


def table(request: HttpRequest, site: AdminSite, break_url: str | None) -> str:
    """The table, empty if there is no lease. ``break_url``: where each row has a button that ends it."""
    rows = [row for feature in features for row in _rows(feature, request, site)]
    if not rows:
        return ""
    context = {"rows": rows, "break_url": break_url, "longest_reason": LONGEST_REASON}
    return render_to_string("admin/django_distlock/heldlock/leases.html", context, request)


def _rows(feature: Leases, request: HttpRequest, site: AdminSite) -> Iterable[dict[str, Any]]:
    try:
        found = feature.all_held(limit=MOST_SHOWN)
    except BackendUnavailable:
        logger.warning("The leases of %s cannot be read.", feature.kind, exc_info=True)
        return
    for each, (what, url) in zip(found, feature.shown(found, request, site), strict=True):
        yield {
            "what": one_line(what, LONGEST_TEXT),
            "url": url,
            "who": one_line(each.row.label, LONGEST_TEXT),
            "principal": one_line(each.row.principal, LONGEST_TEXT),
            "since": each.row.since,
            "sent": {"kind": feature.kind, "lease": _id_of(each)},
        }


def end(request: HttpRequest, reason: str) -> None:
    """End the lease that the form names, if the holder that was shown still has it, and say so."""
    kind, sent = request.POST.get("kind", ""), request.POST.get("lease", "")
    feature, database = _place(kind, sent)
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


def _place(kind: str, sent: str) -> Any:
    """The feature and the database of the lease in the form: no other one has to answer."""
    for feature in features:
        for database in feature.databases() if feature.kind == kind else ():
            if sent.startswith(f"{database} "):
                return feature, database
    return None, ""


def _id_of(each: Held) -> str:
    """One lease, by its object or name and its fence."""
    return f"{each.database} {each.row.digest} {each.row.fence}"
