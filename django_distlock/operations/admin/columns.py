"""The columns of the list, which the pages of single locks show as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_distlock.concurrency.text import one_line

from .rows import KINDS, LockRow

if TYPE_CHECKING:
    from datetime import datetime

    from django.utils.safestring import SafeString


class Columns:
    """Each column takes an object of the model with the attribute ``row``."""

    @admin.display(description=gettext_lazy("name"), ordering="lock__name")
    def name(self, obj: Any) -> SafeString:
        row: LockRow = obj.row
        if row.info.name is None:
            title = _("The name is not known here; this is the key.")
            return format_html('<bdi class="distlock-key" title="{}">{}</bdi>', title, row.label)
        if row.kind in KINDS.values():
            kind = _("table") if row.kind == "table" else _("row lock")
            return format_html('<bdi>{}</bdi> <span class="distlock-kind">{}</span>', row.label, kind)
        return format_html("<bdi>{}</bdi>", row.label)

    @admin.display(description=gettext_lazy("backend"), ordering="lock__backend")
    def backend(self, obj: Any) -> str:
        return one_line(obj.row.info.backend, 100)

    @admin.display(description=gettext_lazy("mode"), ordering="lock__mode")
    def mode(self, obj: Any) -> str:
        return _("shared") if obj.row.info.shared else _("exclusive")

    @admin.display(description=gettext_lazy("holder"), ordering="lock__holder")
    def holder(self, obj: Any) -> SafeString | None:
        holder = obj.row.info.holder
        return format_html("<bdi>{}</bdi>", one_line(holder, 200)) if holder else None

    @admin.display(description=gettext_lazy("held for"), ordering="lock__age")
    def held_since(self, obj: Any) -> SafeString | None:
        row: LockRow = obj.row
        if row.info.acquired_at is None or row.age is None:
            return None
        since = format_html(_("since {}"), moment(row.info.acquired_at))
        return format_html(
            '<span class="distlock-age">{}</span> <span class="distlock-since">{}</span>', duration(row.age), since
        )

    @admin.display(description=gettext_lazy("TTL left"), ordering="lock__ttl")
    def ttl_left(self, obj: Any) -> str | None:
        left = obj.row.ttl_left
        return None if left is None else duration(left)

    @admin.display(description=gettext_lazy("fence"))
    def fence(self, obj: Any) -> str | None:
        return None if obj.row.info.fence is None else str(obj.row.info.fence)

    @admin.display(description=gettext_lazy("waiters (at least)"), ordering="lock__waiters")
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

    def shown(self, row: LockRow) -> dict[str, Any]:
        """The columns of one lock, by name."""
        obj = row.as_object()
        return {
            "name": self.name(obj),
            "backend": self.backend(obj),
            "mode": self.mode(obj),
            "holder": self.holder(obj),
            "held_since": self.held_since(obj),
            "ttl_left": self.ttl_left(obj),
            "waiters": self.waiters(obj),
        }


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
