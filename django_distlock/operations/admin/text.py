"""How times are written on a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _

if TYPE_CHECKING:
    from datetime import datetime

    from django.utils.safestring import SafeString


def duration(seconds: float) -> str:
    """Two units at most: 12 s, 3 min 20 s, 5 h 2 min, 4 d 7 h."""
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
    """A point in time in the time zone of the page. ISO 8601, because Django's short formats leave out the seconds."""
    local = timezone.localtime(at) if timezone.is_aware(at) else at
    # dir: after an Arabic letter the day would be drawn before the year
    return format_html(
        '<time dir="ltr" datetime="{}">{}</time>', at.isoformat(timespec="seconds"), f"{local:%Y-%m-%d %H:%M:%S}"
    )
