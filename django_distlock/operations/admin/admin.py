"""The pages of held locks in Django's admin: the list, one lock, and breaking locks.

``django_distlock.view_heldlock`` permits viewing, ``django_distlock.break_lock`` also permits breaking. Nothing can be
added, changed or deleted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from urllib.parse import parse_qsl, urlencode

import django
from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import ShowFacets
from django.contrib.admin.utils import quote, unquote
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, router, transaction
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_distlock.concurrency.text import one_line
from django_distlock.models import HeldLock, LockEvent
from django_distlock.operations import history

from . import breaking, changelist
from .rows import LockRow, LockRows

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse
    from django.utils.safestring import SafeString

    from django_distlock.operations.history import Event

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


class Section(Protocol):
    """A table of another feature below the list of held locks, and the addresses of its buttons."""

    def urls(self, held: Any) -> list[Any]:
        """The addresses, for the admin of held locks."""

    def html(self, held: Any, request: HttpRequest) -> str:
        """The markup; empty if there is nothing to show."""


@admin.register(HeldLock)
class HeldLockAdmin(Base):
    """Each row is a lock of ``held_locks()``; there is no table."""

    # most important columns first: narrow screens cut off the rest
    list_display = ("name", "held_since", "waiters", "holder", "backend", "mode", "ttl_left", "fence")
    list_display_links = ("name",)
    list_filter = (
        changelist.AliasFilter,
        changelist.ModeFilter,
        changelist.WaitersFilter,
        changelist.AgeFilter,
        changelist.KindFilter,
    )
    list_per_page = 100
    list_max_show_all = 0
    search_fields = ("key",)
    show_facets = ShowFacets.NEVER
    show_full_result_count = False  # the list counts by the query of the matching rows
    actions = ("break_selected",)
    empty_value_display = "-"
    # What other features show below the list: see django_distlock.admin.
    sections: ClassVar[list[Section]] = []

    @property
    def media(self) -> forms.Media:
        """Replaces the admin's scripts for lists: rows come and go while the page is open."""
        return forms.Media(
            css={"all": ("django_distlock/heldlocks.css",)}, js=("admin/js/core.js", "django_distlock/heldlocks.js")
        )

    # columns: each takes an object of the model with the attribute ``row``

    @admin.display(description=gettext_lazy("name"), ordering="name")
    def name(self, obj: Any) -> SafeString:
        row: LockRow = obj.row
        if row.info.name is None:
            title = _("The name is not known here; this is the key.")
            return format_html('<bdi class="distlock-key" title="{}">{}</bdi>', title, row.label)
        if row.kind != "named":
            kind = _("table") if row.kind == "relation" else _("row lock")
            return format_html('<bdi>{}</bdi> <span class="distlock-kind">{}</span>', row.label, kind)
        return format_html("<bdi>{}</bdi>", row.label)

    @admin.display(description=gettext_lazy("backend"), ordering="backend")
    def backend(self, obj: Any) -> str:
        return one_line(obj.row.info.backend, 100)

    @admin.display(description=gettext_lazy("mode"), ordering="mode")
    def mode(self, obj: Any) -> str:
        return _("shared") if obj.row.info.shared else _("exclusive")

    @admin.display(description=gettext_lazy("holder"), ordering="holder")
    def holder(self, obj: Any) -> SafeString | None:
        holder = obj.row.info.holder
        return format_html("<bdi>{}</bdi>", one_line(holder, 200)) if holder else None

    @admin.display(description=gettext_lazy("held for"), ordering="age")
    def held_since(self, obj: Any) -> SafeString | None:
        row: LockRow = obj.row
        if row.info.acquired_at is None or row.age is None:
            return None
        since = format_html(_("since {}"), moment(row.info.acquired_at))
        return format_html(
            '<span class="distlock-age">{}</span> <span class="distlock-since">{}</span>', duration(row.age), since
        )

    @admin.display(description=gettext_lazy("TTL left"), ordering="expiry")
    def ttl_left(self, obj: Any) -> str | None:
        left = obj.row.ttl_left
        return None if left is None else duration(left)

    @admin.display(description=gettext_lazy("fence"))
    def fence(self, obj: Any) -> str | None:
        return None if obj.row.info.fence is None else str(obj.row.info.fence)

    @admin.display(description=gettext_lazy("waiters (at least)"), ordering="waiters")
    def waiters(self, obj: Any) -> str | SafeString | None:
        waiters = obj.row.info.waiters
        return format_html("<strong>{}</strong>", waiters) if waiters else None if waiters is None else "0"

    def action_checkbox(self, obj: Any) -> SafeString:
        """The checkbox of a lock that can be broken."""
        row: LockRow = obj.row
        if not row.breakable:
            return format_html('<span data-row="{}"></span>', row.pk)
        label = _("Select the lock %s") % row.label
        return format_html(
            '<input type="checkbox" name="{}" value="{}" class="action-select" aria-label="{}">',
            ACTION_CHECKBOX_NAME,
            row.pk,
            label,
        )

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
            *(url for section in self.sections for url in section.urls(self)),
            named(self.changelist_view, "changelist", ""),
            named(self.break_view, "break", "break/"),
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

    def get_queryset(self, request: HttpRequest, **kwargs: Any) -> Any:
        return LockRows()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[changelist.HeldLockChangeList]:
        return changelist.HeldLockChangeList

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None, **kwargs: Any
    ) -> HttpResponse:
        if request.method == "POST" and not self.has_break_permission(request):
            raise PermissionDenied
        context = dict(extra_context or {})
        if REFRESH in request.headers:  # messages belong on the page that the user asks for
            context["messages"] = ()
        if request.method == "GET" and self.has_view_permission(request):
            context["sections"] = [section.html(self, request) for section in self.sections]
        return super().changelist_view(request, context, **kwargs)  # type: ignore[no-any-return,unused-ignore]

    # one lock

    def detail_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The page of one held lock."""
        if request.method not in ("GET", "HEAD") or not self.has_view_permission(request):
            raise PermissionDenied
        pk = unquote(object_id)
        row = self._find(rows := self._at(pk), pk)
        if row is None:
            return self._gone(request, rows, pk)
        context = {
            "title": row.label,
            **self._context_of(row),
            "key": one_line(row.info.key, LONGEST),
            "facts": [(fact, one_line(value, LONGEST)) for fact, value in breaking.facts_of(row)],
            "blocks": one_line(row.info.details.get("blocks", ""), LONGEST),
            "history": _history(row.info.backend, row.info.name),
            "break_url": self.address(request, "confirm", row.pk)
            if row.breakable and self.has_break_permission(request)
            else None,
        }
        return self._page(request, "detail", context)

    def _at(self, pk: str) -> LockRows:
        return LockRows().of(pk.partition("/")[0]).at([pk])

    def _find(self, rows: LockRows, pk: str) -> LockRow | None:
        return next((row for row in rows.rows if row.pk == pk), None)

    def _gone(self, request: HttpRequest, rows: LockRows, pk: str) -> HttpResponse:
        """The page of a lock that its holder has released, or whose alias does not answer."""
        unanswered = rows.errors[0] if rows.errors else None
        context = {
            "title": _("This lock cannot be shown now") if unanswered else _("This lock is no longer held"),
            "unanswered": unanswered,
            "others": [(row.label, self.address(request, "change", row.pk)) for row in rows.rows],
        }
        # an alias that is not configured is not found either
        known = unanswered is not None and bool(unanswered.backend)
        return self._page(request, "gone", context, status=200 if known else 404)

    # breaking

    @admin.action(permissions=["break"], description=gettext_lazy("Break selected locks"))
    def break_selected(self, request: HttpRequest, queryset: Any) -> HttpResponse | None:
        if not queryset:
            self.message_user(request, _("None of these locks is still held."), messages.WARNING)
            return None
        if len(queryset) > breaking.MOST:
            text = _("At most %d locks can be broken at once.") % breaking.MOST
            self.message_user(request, text, messages.ERROR)
            return None
        # the selected locks or, with "select_across", all that match
        rows = queryset.having(start=0, stop=breaking.MOST).rows if isinstance(queryset, LockRows) else queryset
        return self._confirmation(request, rows)

    def confirm_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the lock and ask for confirmation."""
        if request.method not in ("GET", "HEAD") or not self.has_break_permission(request):
            raise PermissionDenied
        pk = unquote(object_id)
        row = self._find(rows := self._at(pk), pk)
        return self._gone(request, rows, pk) if row is None else self._confirmation(request, [row])

    def _confirmation(self, request: HttpRequest, rows: Sequence[LockRow]) -> HttpResponse:
        context = {
            "title": _("Break this lock?") if len(rows) == 1 else _("Break these locks?"),
            "locks": [self._context_of(row) for row in rows if row.breakable],
            "refused": [row.label for row in rows if not row.breakable],
            "break_url": self.address(request, "break"),
            "longest_reason": breaking.LONGEST_REASON,
        }
        return self._page(request, "break_confirmation", context)

    def _context_of(self, row: LockRow) -> dict[str, Any]:
        """The context of a page about this lock."""
        obj, details = row.as_object(), row.info.details
        return {
            "row": row,
            **{str(column): getattr(self, str(column))(obj) for column in self.list_display},
            "waiting": [one_line(who, 200) for who in row.info.waiting],
            "more_waiting": max(0, (row.info.waiters or 0) - len(row.info.waiting)) if row.info.waiting else 0,
            # breaking it ends the session, with everything that it holds
            "session": "pid" in details or "connection" in details,
            "also_holds": one_line(details.get("also_holds", ""), LONGEST),
        }

    def break_view(self, request: HttpRequest) -> HttpResponse:
        """Break the confirmed locks. The form has their primary keys, which identify their holders as well."""
        if not self.has_break_permission(request):
            raise PermissionDenied
        confirmed = request.POST.getlist("lock")[: breaking.MOST] if request.method == "POST" else []
        if confirmed:
            breaking.break_all(request, dict.fromkeys(confirmed), breaking.reason_of(request.POST.get("reason", "")))
        return HttpResponseRedirect(self.back(request))

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any], status: int = 200) -> HttpResponse:
        request.current_app = self.admin_site.name
        common = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "back": self.back(request),
            # Django 6.1 marks breadcrumbs up as a list
            "listed_breadcrumbs": django.VERSION >= (6, 1),
        }
        name = f"admin/django_distlock/heldlock/{template}.html"
        return TemplateResponse(request, name, {**common, **context}, status=status)


def _history(alias: str, name: str | None) -> dict[str, Any] | None:
    """``events`` of a lock, newest first, and ``plot``, an SVG of waits and holds; or ``error``, the class of the error
    that prevented reading them. None if no history is recorded."""
    if name is None or not history.enabled():
        return None
    try:
        # an error must not spoil a transaction around the request
        with transaction.atomic(using=router.db_for_read(LockEvent)):
            events = history.recent(alias, name, limit=EVENTS_SHOWN)
    except DatabaseError as error:
        logger.warning("The history of locks cannot be read: %s", one_line(error))
        return {"error": type(error).__name__}
    return {"events": [_event(event) for event in events], "plot": history.plot(events) if events else ""}


def _event(event: Event) -> dict[str, Any]:
    return {
        "at": moment(event.at),
        "what": EVENTS.get(event.kind, event.kind),
        "wait": _seconds(event.wait),
        "hold": _seconds(event.hold),
        "who": one_line(event.holder, 200),
        "reason": one_line(event.reason, 200),
    }


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3f} s" if value < 1 else duration(value)


def duration(seconds: float) -> str:
    """At most two units: 12 s, 3 min 20 s, 5 h 2 min, 4 d 7 h."""
    whole = int(max(0.0, seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours % 24}
    if hours:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes % 60}
    if minutes:
        return _("%(minutes)d min %(seconds)d s") % {"minutes": minutes, "seconds": whole % 60}
    return _("%(seconds)d s") % {"seconds": whole}


def moment(at: datetime) -> SafeString:
    """A time in the time zone of the page, as ISO 8601: Django's short formats leave out the seconds."""
    local = timezone.localtime(at) if timezone.is_aware(at) else at
    # without dir the day stands before the year where the text before it is Arabic
    return format_html(
        '<time dir="ltr" datetime="{}">{}</time>', at.isoformat(timespec="seconds"), f"{local:%Y-%m-%d %H:%M:%S}"
    )
