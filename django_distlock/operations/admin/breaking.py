"""Break locks whose holders a page has shown, and report the result."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_distlock import DistlockError, UnsupportedOperation
from django_distlock.concurrency.text import one_line
from django_distlock.models import HeldLock

from .rows import LockRows, seen

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpRequest

    from .rows import LockRow

# Locks that can be confirmed at once.
MOST = 100
# Up to this number, each lock that was broken has a message.
NAMED = 5
LONGEST_REASON = 500
# Details that the page shows elsewhere, or that only the engine needs.
_APART = {"kind", "blocks", "also_holds", "backend_start", "noted", "last_statement"}
HANDS = gettext_lazy("The lock “%(name)s” has changed hands; it was not broken.")


def reason_of(text: str) -> str:
    """The reason as one line."""
    return one_line(" ".join(text.split()), LONGEST_REASON)


def break_all(request: HttpRequest, confirmed: Iterable[str], reason: str) -> None:
    """Break the confirmed locks (:attr:`LockRow.seen`), each only if the holder that was shown still has it.

    Each has a message, and an entry in the admin's log if it was broken.
    """
    by_alias: dict[str, list[tuple[str, str, float]]] = {}
    for text in confirmed:
        by_alias.setdefault(text.partition("/")[0], []).append(seen(text))
    broken: list[LockRow] = []
    for alias, shown in by_alias.items():
        rows = LockRows().of(alias).at(pk for pk, _mark, _stamp in shown)
        if rows.errors:
            _report_error(request, alias, str(rows.errors[0].error))
            continue
        found = {row.pk: row for row in rows.rows}
        for pk, mark, stamp in shown:
            if pk not in found:
                _warn_gone(request, rows, pk)
            elif not found[pk].is_still(mark, stamp):
                messages.warning(request, HANDS % {"name": found[pk].label})
            elif _broken(request, found[pk], reason):
                broken.append(found[pk])
    if len(broken) > NAMED:
        text = ngettext("%(count)d lock was broken.", "%(count)d locks were broken.", len(broken))
        messages.success(request, text % {"count": len(broken)})
    for row in broken if len(broken) <= NAMED else ():
        text = _("The lock “%(name)s” was broken. It was held by %(holder)s.")
        messages.success(request, text % {"name": row.label, "holder": one_line(row.info.holder or _("unknown"), 200)})


def _broken(request: HttpRequest, row: LockRow, reason: str) -> bool:
    who = one_line(str(request.user.get_username()), 150)
    try:
        broken = row.take_away(f"admin {who}: {reason or '-'}")
    except UnsupportedOperation:
        messages.error(request, _("The lock “%(name)s” cannot be broken here.") % {"name": row.label})
        return False
    except DistlockError as error:
        _report_error(request, row.info.backend, type(error.__cause__ or error).__name__)
        return False
    if broken:
        _write_log(request, row, reason)
    else:
        _warn_gone(request, LockRows().of(row.info.backend).at([row.pk]), row.pk, row.label)
    return broken


def _write_log(request: HttpRequest, row: LockRow, reason: str) -> None:
    """Write to the admin's log who broke what."""
    facts = ", ".join(f"{fact} {one_line(value, 100)}" for fact, value in facts_of(row))
    text = _("Broke the lock on %(alias)s, held by %(holder)s (%(facts)s). Reason: %(reason)s")
    LogEntry.objects.create(
        user_id=str(request.user.pk),
        content_type=ContentType.objects.get_for_model(HeldLock),
        object_id=row.pk,
        object_repr=row.label[:200],
        action_flag=CHANGE,
        change_message=text
        % {
            "alias": row.info.backend,
            "holder": one_line(row.info.holder or _("unknown"), 200),
            "facts": facts or "-",
            "reason": reason or "-",
        },
    )


def facts_of(row: LockRow) -> list[tuple[str, str]]:
    """Further facts about the holder: fence, token, process of the server, ..."""
    details = row.info.details
    facts = [(fact.replace("_", " "), value) for fact, value in details.items() if fact not in _APART and value]
    with suppress(KeyError, ValueError, OverflowError, OSError):  # seconds since 1970
        told = datetime.fromtimestamp(float(details["last_statement"]), UTC)
        facts.append((_("last statement"), f"{timezone.localtime(told):%Y-%m-%d %H:%M:%S}"))
    return facts if row.info.fence is None else [("fence", str(row.info.fence)), *facts]


def _warn_gone(request: HttpRequest, rows: LockRows, pk: str, label: str = "") -> None:
    """Report that the confirmed holder no longer has the lock."""
    place = pk.rpartition("/")[0]
    now = [row for row in rows.rows if row.place == place and row.pk != pk]
    name = {"name": label or (now[0].label if now else one_line(place.partition("/")[2], 200))}
    if now:
        messages.warning(request, HANDS % name)
    else:
        messages.warning(request, _("The lock “%(name)s” is no longer held; nothing was broken.") % name)


def _report_error(request: HttpRequest, alias: str, error: str) -> None:
    text = _("%(alias)s does not answer (%(error)s); nothing was broken there.")
    messages.error(request, text % {"alias": one_line(alias, 100), "error": error})
