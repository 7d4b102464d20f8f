"""The locks that are held now, by any process, and how an operator breaks one."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_distlock import signals
from django_distlock.concurrency import clock
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted
from django_distlock.concurrency.flow import in_task, run
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import DistlockError
from django_distlock.records import MOST_WAITING, BackendReport, LockInfo

from . import events
from .lock_table import lock_table
from .name_log import describe_holder
from .registry import registry
from .site_key import site_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from django_distlock.backends.base import Backend
    from django_distlock.concurrency.outcome import Outcome

logger = logging.getLogger("django_distlock.operations")

# The time limit for all aliases together, in seconds. Each statement has two.
PATIENCE = 2.5
# Abandoned queries of one alias that may be under way. If host names cannot be resolved, each may hang for minutes.
MOST_ABANDONED = 8

_queries: dict[str, Background] = {}
at_fork(Order.THREADS, child=_queries.clear)


def held_locks(using: str | None = None) -> list[BackendReport]:
    """The held locks of one alias, or of all: one report per alias.

    On PostgreSQL, MySQL and MariaDB the list includes the locks on tables and rows of the alias's database that block
    other sessions: ``details["kind"]`` is "relation" or "row", ``details["blocks"]`` lists the blocked sessions.

    A backend that does not answer raises nothing: ``error`` of its report is the class of the error. The error itself,
    which may contain an address, is only logged. All aliases are queried at the same time and have 2.5 s together; one
    that takes longer has the error "TimeoutError".
    """
    aliases = [using] if using is not None else registry.aliases()
    for alias in aliases:
        with suppress(Exception):  # the query fails with the same error, and reports it
            # before the time begins: the first import of a driver in a process can take seconds
            registry.entry(alias).backend.load()
    until = clock.now() + PATIENCE
    reports = [(alias, _begun(alias)) for alias in aliases]
    return [_taken(alias, report, until) for alias, report in reports]


async def held_names(names: Iterable[str], using: str) -> set[str]:
    """Those of ``names`` whose locks anybody holds now on the alias ``using``.

    For a task the engine is asked in a thread: that waits for a server only as long as a statement may take.
    """
    entry = registry.entry(using)
    if not entry.ready:
        await site_key.aload()
    keys = {entry.key(name): name for name in names}  # here, because the namespace is that of the caller
    ask = partial(entry.backend.held_among, keys)
    return {keys[key] for key in (await asyncio.to_thread(ask) if in_task() else ask())}


def break_lock(info: LockInfo, *, reason: str = "") -> bool:
    """Take a lock away from exactly the holder that ``info``, an item of :func:`held_locks`, describes.

    Returns True if that holder has lost the lock; False if it no longer held it, even if another holder has the lock
    now. The holder is notified as of any loss: ``lease.lost``, :class:`LockLost`, the signal ``lock_lost``. The signal
    ``lock_broken`` is sent with ``reason``, which should name the operator and the cause.

    Raises UnsupportedOperation if the engine cannot break locks, and for locks on tables and rows; BackendUnavailable
    if the server does not answer. PostgreSQL and MySQL end the session that holds the lock, with all its locks.
    """
    backend = registry.entry(info.backend).backend
    if not backend.supports_break or "kind" in info.details:
        raise backend.unsupported("break this lock")
    broken = backend.break_lock(info)
    if broken:
        logger.warning(
            "The lock %r of alias %r was broken: %s", info.name or info.key, info.backend, one_line(reason or "-")
        )
        events.send(signals.lock_broken, backend, info.name or info.key, reason=reason)
    return broken


def _begun(alias: str) -> Outcome[BackendReport] | None:
    """The query of one alias, in a thread; None if too many are still under way."""
    _queries.setdefault(alias, Background(f"distlock-list-{alias}", MOST_ABANDONED))
    with suppress(NotStarted):
        return _queries[alias].start(_report, alias)
    return None


def _taken(alias: str, report: Outcome[BackendReport] | None, until: float) -> BackendReport:
    """The report, or one of a timeout at the monotonic time ``until``."""
    if report is not None:
        with suppress(CallTimeout):
            return run(_queries[alias].result(report, until))
    logger.warning("The locks of alias %r cannot be listed: no answer within %g s", alias, PATIENCE)
    return BackendReport(alias=alias, backend=type(registry.entry(alias).backend).__name__, error="TimeoutError")


def _report(alias: str) -> BackendReport:
    name = ""
    try:
        backend = registry.entry(alias).backend
        name = type(backend).__name__
        locks = tuple(_known_here(backend, backend.inspect()))
    except (DistlockError, ImproperlyConfigured) as error:
        logger.warning("The locks of alias %r cannot be listed: %s", alias, one_line(error))
        cause = error.__cause__ if isinstance(error, DistlockError) else None
        return BackendReport(alias=alias, backend=name, error=type(cause or error).__name__)
    finally:
        connections.close_all()  # of this thread: names and the site key are in a database
    return BackendReport(alias=alias, backend=name, breakable=backend.supports_break, locks=locks)


def _known_here(backend: Backend, infos: Iterable[LockInfo]) -> Iterator[LockInfo]:
    """Add what only this process knows: the names that it has used, and its own waiters."""
    names = backend.known_names() if backend.keeps_notes else {}
    queues = _waiting_here(backend)
    for info in infos:
        found = replace(info, name=names[info.key]) if info.name is None and info.key in names else info
        if here := queues.get(info.key):
            waiting = (*info.waiting, *here)[:MOST_WAITING]
            found = replace(found, waiters=(info.waiters or 0) + len(here), waiting=waiting)
        yield found


def _waiting_here(backend: Backend) -> dict[str, list[str]]:
    """The callers that queue in this process for a lock that another of its callers holds or requests."""
    queues = defaultdict(list)
    for hold in lock_table.all():
        if hold.waits and hold.backend is backend:
            queues[backend.listed_as(hold.key)].append(describe_holder(hold))
    return queues
