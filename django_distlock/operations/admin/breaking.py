"""Break the holds that a page has shown, and report the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import ImproperlyConfigured
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_distlock import DistlockError, UnsupportedOperation, break_lock
from django_distlock.concurrency.text import one_line
from django_distlock.models import HeldLock

from .rows import facts_of, label_of, pk_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.http import HttpRequest

    from django_distlock.records import LockInfo

# Locks that can be confirmed at once: one page of the list.
MOST = 100
# Up to this number, each lock that was broken has a message.
NAMED = 5
LONGEST_REASON = 500


def reason_of(text: str) -> str:
    """The reason as one line."""
    return one_line(" ".join(text.split()), LONGEST_REASON)


def break_all(request: HttpRequest, confirmed: Iterable[LockInfo], reason: str) -> None:
    """Break the confirmed holds; the engine ends each only if the holder that was shown still has the lock.

    Each has a message, and an entry in the admin's log if it was broken.
    """
    broken = [info for info in confirmed if _broken(request, info, reason)]
    if len(broken) > NAMED:
        text = ngettext("%(count)d lock was broken.", "%(count)d locks were broken.", len(broken))
        messages.success(request, text % {"count": len(broken)})
    for info in broken if len(broken) <= NAMED else ():
        text = _("The lock “%(name)s” was broken. It was held by %(holder)s.")
        messages.success(request, text % {"name": label_of(info), "holder": _holder(info)})


def _holder(info: LockInfo) -> str:
    return one_line(info.holder or _("unknown"), 200)


def _broken(request: HttpRequest, info: LockInfo, reason: str) -> bool:
    who = one_line(str(request.user.get_username()), 150)
    name = {"name": label_of(info)}
    try:
        broken = break_lock(info, reason=f"admin {who}: {reason or '-'}")
    except UnsupportedOperation:
        messages.error(request, _("The lock “%(name)s” cannot be broken here.") % name)
        return False
    except (DistlockError, ImproperlyConfigured) as error:
        text = _("%(alias)s does not answer (%(error)s); nothing was broken there.")
        cause = type(error.__cause__ or error).__name__
        messages.error(request, text % {"alias": one_line(info.backend, 100), "error": cause})
        return False
    if broken:
        _write_log(request, info, reason)
    else:
        text = _("The lock “%(name)s” has changed hands or was released; it was not broken.")
        messages.warning(request, text % name)
    return broken


def _write_log(request: HttpRequest, info: LockInfo, reason: str) -> None:
    """Write to the admin's log who broke what."""
    facts = ", ".join(f"{fact} {one_line(value, 100)}" for fact, value in facts_of(info))
    text = _("Broke the lock on %(alias)s, held by %(holder)s (%(facts)s). Reason: %(reason)s")
    values = {"alias": info.backend, "holder": _holder(info), "facts": facts or "-", "reason": reason or "-"}
    LogEntry.objects.create(
        user_id=str(request.user.pk),
        content_type=ContentType.objects.get_for_model(HeldLock),
        object_id=pk_of(info),
        object_repr=label_of(info)[:200],
        action_flag=CHANGE,
        change_message=text % values,
    )
