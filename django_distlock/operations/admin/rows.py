"""A held lock as a row of a page, and as what a form sends back about it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.core import signing
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import one_line
from django_distlock.records import LockInfo

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

    from django_distlock.records import BackendReport

# The details that identify a holder, by engine. Its own description is left out: it may change during the hold.
_IDENTITY = ("token", "node", "pid", "connection", "backend_start")
# Details that the page shows elsewhere, or that only the engine needs.
_SHOWN_ELSEWHERE = {"kind", "blocks", "also_holds", "backend_start", "last_statement"}
SALT = "django_distlock.heldlock"


def row_of(info: LockInfo, report: BackendReport, now: datetime) -> dict[str, Any]:
    """What pages show of a held lock at the time ``now``: printable texts, empty where something is not known."""
    acquired, expires, kind = info.acquired_at, info.expires_at, kind_of(info)
    return {
        "info": info,
        "report": report,
        "kind": kind,
        "pk": pk_of(info),
        "label": label_of(info),
        "backend": one_line(info.backend, 100),
        "mode": _("shared") if info.shared else _("exclusive"),
        "holder": one_line(info.holder or "", 200),
        "age": "" if acquired is None else duration((now - acquired).total_seconds()),
        "since": "" if acquired is None else format_html(_("since {}"), moment(acquired)),
        "ttl_left": "" if expires is None else duration((expires - now).total_seconds()),
        "fence": "" if info.fence is None else str(info.fence),
        "waiters": "" if info.waiters is None else str(info.waiters),
        "waiting": [one_line(who, 200) for who in info.waiting],
        # those that are counted, but not among the named ones
        "more_waiting": max(0, (info.waiters or 0) - len(info.waiting)) if info.waiting else 0,
        "breakable": report.breakable and kind == "named",
        # does a break end the session, with everything that it holds?
        "ends_session": not {"pid", "connection"}.isdisjoint(info.details),
        "also_holds": one_line(info.details.get("also_holds", ""), 2000),
    }


def kind_of(info: LockInfo) -> str:
    """Is it a "named" lock, one on a "relation" or on a "row"?"""
    return info.details.get("kind", "named")


def signed(info: LockInfo) -> str:
    """What a form sends back: the hold itself, for :func:`unsigned`. Signed, because it names a session to end."""
    details = {key: value for key, value in info.details.items() if key != "also_holds"}
    values = {"backend": info.backend, "key": info.key, "name": info.name, "holder": info.holder}
    return signing.dumps({**values, "shared": info.shared, "fence": info.fence, "details": details}, salt=SALT)


def unsigned(text: str) -> LockInfo:
    """The hold that a page has shown. BadSignature if no page has."""
    values: dict[str, Any] = signing.loads(text, salt=SALT)
    return LockInfo(**values)


def place_of(info: LockInfo) -> str:
    """Alias and key: the same for every holder of the lock."""
    return f"{info.backend}/{_digest(info.key)}"


def pk_of(info: LockInfo) -> str:
    """The place, and a digest of what identifies this holder: the address of this one hold."""
    facts = [info.details[fact] for fact in _IDENTITY if fact in info.details]
    if info.fence is not None:
        facts.append(str(info.fence))
    return f"{place_of(info)}/{_digest(*(facts or [info.holder or '', str(info.acquired_at)]), str(info.shared))}"


def label_of(info: LockInfo) -> str:
    """The name, or the engine's key if the name is not known."""
    return one_line(info.key if info.name is None else info.name, 200)


def facts_of(info: LockInfo) -> list[tuple[str, str]]:
    """Further facts about the holder: fence, token, process of the server, ..."""
    details = info.details.items()
    facts = [(fact.replace("_", " "), value) for fact, value in details if fact not in _SHOWN_ELSEWHERE and value]
    with suppress(KeyError, ValueError, OverflowError, OSError):  # seconds since 1970
        told = datetime.fromtimestamp(float(info.details["last_statement"]), UTC)
        facts.append((_("last statement"), f"{timezone.localtime(told):%Y-%m-%d %H:%M:%S}"))
    return facts if info.fence is None else [("fence", str(info.fence)), *facts]


def _digest(*parts: str) -> str:
    """A digest of several texts: ("a", "bc") and ("ab", "c") differ."""
    blob = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(blob, digest_size=8).hexdigest()


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
