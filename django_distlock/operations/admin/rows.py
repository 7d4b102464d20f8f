"""A held lock as a row of a page, and as what a form sends back about it."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.core import signing
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _

from django_distlock.concurrency.text import one_line
from django_distlock.operations.query import kind_of
from django_distlock.records import LockInfo

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

    from django_distlock.records import BackendReport

# The details that identify a holder, by engine. Its own description is left out: it may change during the hold.
_IDENTITY = ("token", "node", "pid", "connection", "backend_start")
# Details that the page shows elsewhere, or that only the engine needs.
_APART = {"kind", "blocks", "also_holds", "backend_start", "last_statement"}
SALT = "django_distlock.heldlock"


@dataclass(frozen=True, slots=True)
class LockRow:
    """One held lock at the time ``now``. Its texts are printable, and empty where something is not known."""

    info: LockInfo
    report: BackendReport
    now: datetime

    @property
    def breakable(self) -> bool:
        return self.report.breakable and self.kind == "named"

    @property
    def kind(self) -> str:
        """A Kind of operations.query."""
        return kind_of(self.info)

    @property
    def label(self) -> str:
        """The name, or the engine's key if the name is not known."""
        return label_of(self.info)

    @property
    def backend(self) -> str:
        return one_line(self.info.backend, 100)

    @property
    def mode(self) -> str:
        return _("shared") if self.info.shared else _("exclusive")

    @property
    def holder(self) -> str:
        return one_line(self.info.holder or "", 200)

    @property
    def age(self) -> str:
        at = self.info.acquired_at
        return "" if at is None else duration((self.now - at).total_seconds())

    @property
    def since(self) -> SafeString | str:
        at = self.info.acquired_at
        return "" if at is None else format_html(_("since {}"), moment(at))

    @property
    def ttl_left(self) -> str:
        at = self.info.expires_at
        return "" if at is None else duration((at - self.now).total_seconds())

    @property
    def fence(self) -> str:
        return "" if self.info.fence is None else str(self.info.fence)

    @property
    def waiters(self) -> str:
        return "" if self.info.waiters is None else str(self.info.waiters)

    @property
    def waiting(self) -> list[str]:
        return [one_line(who, 200) for who in self.info.waiting]

    @property
    def more_waiting(self) -> int:
        """Waiters that are counted, but not among the named ones."""
        return max(0, (self.info.waiters or 0) - len(self.info.waiting)) if self.info.waiting else 0

    @property
    def ends_session(self) -> bool:
        """Does a break end the session, with everything that it holds?"""
        return not {"pid", "connection"}.isdisjoint(self.info.details)

    @property
    def also_holds(self) -> str:
        return one_line(self.info.details.get("also_holds", ""), 2000)

    @property
    def place(self) -> str:
        """Alias and key: the same for every holder of the lock."""
        return place_of(self.info)

    @property
    def pk(self) -> str:
        return pk_of(self.info)

    @property
    def signed(self) -> str:
        """What a form sends back: the hold itself, for :func:`unsigned`. Signed, because it names a session to end."""
        info = self.info
        details = {key: value for key, value in info.details.items() if key != "also_holds"}
        values = {"backend": info.backend, "key": info.key, "name": info.name, "holder": info.holder}
        return signing.dumps({**values, "shared": info.shared, "fence": info.fence, "details": details}, salt=SALT)


def unsigned(text: str) -> LockInfo:
    """The hold that a page has shown. BadSignature if no page has."""
    values: dict[str, Any] = signing.loads(text, salt=SALT)
    return LockInfo(**values)


def place_of(info: LockInfo) -> str:
    return f"{info.backend}/{_digest(info.key)}"


def pk_of(info: LockInfo) -> str:
    """The place, and a digest of what identifies this holder: the address of this one hold."""
    facts = [info.details[fact] for fact in _IDENTITY if fact in info.details]
    if info.fence is not None:
        facts.append(str(info.fence))
    return f"{place_of(info)}/{_digest(*(facts or [info.holder or '', str(info.acquired_at)]), str(info.shared))}"


def label_of(info: LockInfo) -> str:
    """As :attr:`LockRow.label`."""
    return one_line(info.key if info.name is None else info.name, 200)


def facts_of(info: LockInfo) -> list[tuple[str, str]]:
    """Further facts about the holder: fence, token, process of the server, ..."""
    facts = [(fact.replace("_", " "), value) for fact, value in info.details.items() if fact not in _APART and value]
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
