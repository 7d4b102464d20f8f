"""The pages of held locks in Django's admin: the list, one lock, and breaking locks.

``django_distlock.view_heldlock`` permits viewing, ``django_distlock.break_lock`` also permits breaking. Nothing can be
added, changed or deleted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode

import django
from django.contrib import admin, messages
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.core.signing import BadSignature
from django.db import DatabaseError, router, transaction
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_distlock.concurrency.text import one_line
from django_distlock.manager.introspection import held_locks
from django_distlock.manager.registry import registry
from django_distlock.models import HeldLock, LockEvent
from django_distlock.operations import history
from django_distlock.records import BackendReport

from . import breaking, sections
from .listing import LockList
from .rows import duration, facts_of, label_of, moment, pk_of, place_of, row_of, signed, unsigned

if TYPE_CHECKING:
    from collections.abc import Collection

    from django.http import HttpRequest, HttpResponse

    Base = admin.ModelAdmin[HeldLock]
else:
    Base = admin.ModelAdmin

logger = logging.getLogger("django_distlock.operations")

# The header of the requests with which an open list refreshes itself.
REFRESH = "X-Distlock-Refresh"
# Characters of one text that a page shows.
LONGEST = 2000
EVENTS_SHOWN = 50
EVENTS = {
    "acquired": gettext_lazy("acquired"),
    "released": gettext_lazy("released"),
    "timed_out": gettext_lazy("timed out"),
    "lost": gettext_lazy("lost"),
    "broken": gettext_lazy("broken"),
}


@admin.register(HeldLock)
class HeldLockAdmin(Base):
    """Shows ``held_locks()``; there is no table. It is registered for the admin's index and its permissions."""

    # permissions

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("django_distlock.view_heldlock")

    def has_break_permission(self, request: HttpRequest) -> bool:
        """Breaking needs the permission to view as well, because the page shows the holder."""
        return self.has_view_permission(request) and request.user.has_perm("django_distlock.break_lock")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    # addresses

    def get_urls(self) -> list[Any]:
        def named(view: Any, what: str, pattern: str) -> Any:
            return path(pattern, self.admin_site.admin_view(view), name=f"django_distlock_heldlock_{what}")

        return [
            named(self.changelist_view, "changelist", ""),
            named(self.break_view, "break", "break/"),
            named(self.break_lease_view, "break_lease", "lease/break/"),
            named(self.confirm_view, "confirm", "<path:object_id>/break/"),
            # log entries link to this address
            named(self.detail_view, "change", "<path:object_id>/change/"),
        ]

    def back(self, request: HttpRequest) -> str:
        """The address of the list, as it was. Only its query comes from the request, so that it leads nowhere else."""
        query = urlencode(parse_qsl(request.GET.get("_changelist_filters", "")))
        address = reverse("admin:django_distlock_heldlock_changelist", current_app=self.admin_site.name)
        return f"{address}?{query}" if query else address

    def address(self, request: HttpRequest, what: str, pk: str | None = None) -> str:
        """The address of one of the views; its query leads back to the list."""
        args = [] if pk is None else [quote(pk)]
        address = reverse(f"admin:django_distlock_heldlock_{what}", args=args, current_app=self.admin_site.name)
        filters = self.get_preserved_filters(request)
        return f"{address}?{filters}" if filters else address

    # the list

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The list, and the question about the locks that were chosen on it."""
        if request.method == "POST":
            return self._chosen(request)
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        held, may_break = LockList(request.GET), self.has_break_permission(request)
        context = {
            "title": _("Held locks"),
            "held": held,
            "rows": [(row, self.address(request, "change", row["pk"])) for row in held.rows],
            "may_break": may_break,
            "leases": sections.table(
                request, self.admin_site, self.address(request, "break_lease") if may_break else None
            ),
        }
        if REFRESH in request.headers:  # messages belong on the page that the user asks for
            context["messages"] = ()
        return self._page(request, "change_list", context)

    def _chosen(self, request: HttpRequest) -> HttpResponse:
        if not self.has_break_permission(request):
            raise PermissionDenied
        wanted = dict.fromkeys(request.POST.getlist("selected")[: breaking.MOST])
        rows = [row for alias in set(map(_alias, wanted)) for row in _rows(_report(alias), wanted)]
        if rows:
            return self._confirmation(request, rows)
        text = (
            _("None of these locks is still held.")
            if wanted
            else _("Items must be selected in order to perform actions on them. No items have been changed.")
        )
        self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(request.get_full_path())

    # one lock

    def detail_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The page of one held lock."""
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        report = _report(_alias(pk := unquote(object_id)))
        rows = _rows(report, [pk])
        if not rows:
            return self._gone(request, report, pk)
        (row,) = rows
        info = row["info"]
        may_break = row["breakable"] and self.has_break_permission(request)
        context = {
            "title": row["label"],
            "row": row,
            "key": one_line(info.key, LONGEST),
            "facts": [(fact, one_line(value, LONGEST)) for fact, value in facts_of(info)],
            "blocks": one_line(info.details.get("blocks", ""), LONGEST),
            "history": _history(info.backend, info.name),
            "break_url": self.address(request, "confirm", pk) if may_break else None,
        }
        return self._page(request, "detail", context)

    def _gone(self, request: HttpRequest, report: BackendReport, pk: str) -> HttpResponse:
        """The page of a lock that its holder has released, or whose alias does not answer."""
        place = pk.rpartition("/")[0]
        others = [info for info in report.locks if place_of(info) == place]
        context = {
            "title": _("This lock cannot be shown now") if report.error else _("This lock is no longer held"),
            "unanswered": report if report.error else None,
            "others": [(label_of(info), self.address(request, "change", pk_of(info))) for info in others],
        }
        return self._page(request, "gone", context, status=200 if report.error else 404)

    # breaking

    def confirm_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the lock and ask for confirmation."""
        if request.method not in ("GET", "HEAD") or not self.has_break_permission(request):
            raise PermissionDenied
        report = _report(_alias(pk := unquote(object_id)))
        rows = _rows(report, [pk])
        return self._confirmation(request, rows) if rows else self._gone(request, report, pk)

    def _confirmation(self, request: HttpRequest, rows: list[dict[str, Any]]) -> HttpResponse:
        context = {
            "title": _("Break this lock?") if len(rows) == 1 else _("Break these locks?"),
            "locks": [row | {"signed": signed(row["info"])} for row in rows if row["breakable"]],
            "refused": [row["label"] for row in rows if not row["breakable"]],
            "break_url": self.address(request, "break"),
            "longest_reason": breaking.LONGEST_REASON,
        }
        return self._page(request, "break_confirmation", context)

    def break_view(self, request: HttpRequest) -> HttpResponse:
        """Break the confirmed locks. The form has the holds that were shown, signed."""
        if not self.has_break_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            try:
                confirmed = [unsigned(text) for text in request.POST.getlist("lock")[: breaking.MOST]]
            except BadSignature as error:
                raise PermissionDenied from error
            breaking.break_all(request, confirmed, breaking.reason_of(request.POST.get("reason", "")))
        return HttpResponseRedirect(self.back(request))

    def break_lease_view(self, request: HttpRequest) -> HttpResponse:
        """End the lease of a page in a browser, from the table below the list."""
        if request.method != "POST" or not self.has_break_permission(request):
            raise PermissionDenied
        sections.end(request, breaking.reason_of(request.POST.get("reason", "")))
        return HttpResponseRedirect(self.back(request))

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "back": self.back(request),
            # Django 6.1 marks breadcrumbs up as a list
            "listed_breadcrumbs": django.VERSION >= (6, 1),
        }
        name = f"admin/django_distlock/heldlock/{template}.html"
        return TemplateResponse(request, name, {**common, **context}, status=status)


def _alias(pk: str) -> str:
    """The alias in a primary key."""
    return pk.rsplit("/", 2)[0]


def _report(alias: str) -> BackendReport:
    """The held locks of one alias; none if it is not configured."""
    return held_locks(alias)[0] if alias in registry.aliases() else BackendReport(alias=alias, backend="")


def _rows(report: BackendReport, wanted: Collection[str]) -> list[dict[str, Any]]:
    """The holds with these primary keys, as far as they still last."""
    now = timezone.now()
    return [row_of(info, report, now) for info in report.locks if pk_of(info) in wanted]


def _history(alias: str, name: str | None) -> dict[str, Any] | None:
    """``events`` of a lock as cells of a table, newest first; or ``error``, the class of the error that prevented
    reading them. None if no history is recorded."""
    if name is None or not history.enabled():
        return None
    try:
        # an error must not spoil a transaction around the request
        with transaction.atomic(using=router.db_for_read(LockEvent)):
            events = history.recent(alias, name, limit=EVENTS_SHOWN)
    except DatabaseError as error:
        logger.warning("The history of locks cannot be read: %s", one_line(error))
        return {"error": type(error).__name__}
    return {
        "events": [
            (
                moment(event.at),
                EVENTS.get(event.kind, event.kind),
                _seconds(event.wait),
                _seconds(event.hold),
                event.holder,
                event.reason,
            )
            for event in events
        ]
    }


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s" if value < 1 else duration(value)
