"""Which locks are held now, asked without taking any."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from django_distlock.concurrency.flow import run
from django_distlock.keys import validate_name
from django_distlock.manager import owner
from django_distlock.manager.introspection import held_names

from .lock import Lock, validate_alias

if TYPE_CHECKING:
    from collections.abc import Iterable

N = TypeVar("N", bound=str | Lock)


def locked(names: Iterable[N], *, using: str = "default") -> set[N]:
    """Those of ``names`` whose locks anybody holds now, this caller included.

    One request for each alias; nothing is taken, and nothing waits. The answer is out of date when it arrives: show it,
    but do not decide by it whether to acquire, use :meth:`Lock.try_acquire` for that. A name may also be a
    :class:`Lock`, which keeps its own alias. Braces are literal. A lock held by readers is held, too.

    Raises BackendUnavailable if a server does not answer, TypeError and ValueError for bad input; a semaphore is bad
    input, because it may be held and have a free slot. In the thread of a running event loop it raises
    SynchronousOnlyOperation: use ``await alocked(...)``.
    """
    owner.refuse_event_loop("await alocked(...)")
    return run(alocked(names, using=using))


async def alocked(names: Iterable[N], *, using: str = "default") -> set[N]:
    """:func:`locked` for a task."""
    found: set[N] = set()
    for alias, asked in _by_alias(names, using).items():
        for name in await held_names(asked, alias):
            found.update(asked[name])
    return found


def _by_alias(names: Iterable[N], using: str) -> dict[str, dict[str, list[N]]]:
    """For each alias its names, and for each name what was given for it."""
    validate_alias(using)
    if isinstance(names, str):
        raise TypeError(
            "names must be an iterable of names, not one str; for one lock use advisory_lock(name).locked()."
        )
    asked: dict[str, dict[str, list[N]]] = defaultdict(lambda: defaultdict(list))
    for each in names:
        if isinstance(each, Lock):
            asked[each.using][each.name].append(each)
        else:
            asked[using][validate_name(each)].append(each)
    return asked
