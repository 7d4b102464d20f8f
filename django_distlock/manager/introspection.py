"""The locks that are held now, by any process, and how an operator breaks one."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from django.core.exceptions import ImproperlyConfigured

from django_distlock import signals
from django_distlock.backends.query import Chosen, LockQuery, Mine, chosen
from django_distlock.concurrency import clock
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import DistlockError
from django_distlock.records import MOST_WAITING, BackendReport, LockInfo

from . import events
from .lock_table import lock_table
from .name_log import describe_holder, this_process
from .registry import Entry, registry
from .site_key import site_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from django_distlock.backends.base import Backend

logger = logging.getLogger("django_distlock.operations")

# The time limit for all aliases together, in seconds. Each statement has two.
PATIENCE = 2.5
# Threads that query one alias at the same time. If host names cannot be resolved, each may hang for minutes.
MOST_LOOKS = 8

_looking: defaultdict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(MOST_LOOKS))
at_fork(Order.THREADS, child=_looking.clear)


def held_locks(using: str | None = None) -> list[BackendReport]:
    """The held locks of one alias, or of all: one report per alias.

    On PostgreSQL, MySQL and MariaDB the list includes the locks on tables and rows of the alias's database that block
    other sessions: ``details["kind"]`` is "relation" or "row", ``details["blocks"]`` lists the blocked sessions.

    A backend that does not answer raises nothing: ``error`` of its report is the class of the error. The error itself,
    which may contain an address, is only logged. All aliases are queried at the same time and have 2.5 s together; one
    that takes longer has the error "TimeoutError".
    """
    return [replace(report, locks=tuple(found.locks)) for report, found in ask(LockQuery(), using)]


def ask(query: LockQuery, using: str | None = None) -> list[AliasAnswer]:
    """The answer of each alias, or of the one, to ``query``; errors are reported as in :func:`held_locks`."""
    aliases = [using] if using is not None else registry.aliases()
    for alias in aliases:
        _load(alias)
    looks = [_Look(alias, query) for alias in aliases]
    until = clock.now() + PATIENCE
    return [look.answer(until) for look in looks]


def _load(alias: str) -> None:
    """Import the driver before the time begins: the first import in a process can take seconds."""
    with suppress(Exception):  # the query fails with the same error, and reports it
        registry.entry(alias).backend.load()


def held_names(names: Iterable[str], using: str) -> set[str]:
    """Those of ``names`` whose locks anybody holds now on the alias ``using``."""
    entry = registry.entry(using)
    if not entry.ready:
        site_key.load()
    keys = {entry.key(name): name for name in names}
    return {keys[key] for key in entry.backend.held_among(keys)}


async def aheld_names(names: Iterable[str], using: str) -> set[str]:
    """:func:`held_names` for a task, in a thread: it waits for a server only as long as a statement may take."""
    if not registry.entry(using).ready:
        await site_key.aload()
    return await asyncio.to_thread(held_names, names, using)


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


class AliasAnswer(NamedTuple):
    """The report on one alias, and the locks found."""

    report: BackendReport
    found: Chosen = Chosen((), 0, 0)


class _Look:
    """The query of one alias in a background thread, which is abandoned at the deadline."""

    def __init__(self, alias: str, query: LockQuery) -> None:
        self._alias = alias
        self._query = query
        self._outcome: AliasAnswer | Exception | None = None
        self._thread: threading.Thread | None = None
        self._place = _looking[alias]
        self._begin(0.0)

    def _begin(self, patience: float) -> None:
        """Start the thread once one of the alias's places is free."""
        if self._thread is None and self._place.acquire(timeout=patience):
            thread = threading.Thread(target=self._run, name=f"distlock-list-{self._alias}", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:  # no thread could be started
                self._place.release()
                self._outcome = self._unanswered(error)

    def _run(self) -> None:
        try:
            self._outcome = _answer(self._alias, self._query)
        except Exception as error:
            self._outcome = error
        finally:
            self._place.release()

    def answer(self, until: float) -> AliasAnswer:
        """The answer, or a report of a timeout at the monotonic time ``until``."""
        self._begin(max(0.0, until - clock.now()))
        if self._thread is not None:
            self._thread.join(max(0.0, until - clock.now()))
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if self._outcome is not None:
            return self._outcome
        return self._unanswered(TimeoutError(f"no answer within {PATIENCE:g} s"))

    def _unanswered(self, error: Exception) -> AliasAnswer:
        logger.warning("The locks of alias %r cannot be listed: %s", self._alias, one_line(error))
        name = type(registry.entry(self._alias).backend).__name__
        return AliasAnswer(BackendReport(alias=self._alias, backend=name, error=type(error).__name__))


def _answer(alias: str, query: LockQuery) -> AliasAnswer:
    try:
        entry = registry.entry(alias)
    except ImproperlyConfigured as error:
        logger.warning("Alias %r: %s", alias, one_line(error))
        return AliasAnswer(BackendReport(alias=alias, backend="", error=type(error).__name__))
    name = type(entry.backend).__name__
    try:
        found = _found(entry, query)
    except DistlockError as error:
        logger.warning("The locks of alias %r cannot be listed: %s", alias, one_line(error))
        return AliasAnswer(BackendReport(alias=alias, backend=name, error=type(error.__cause__ or error).__name__))
    return AliasAnswer(BackendReport(alias=alias, backend=name, breakable=entry.backend.supports_break), found)


def _found(entry: Entry, query: LockQuery) -> Chosen:
    """Add what only this process knows: the names that it has used, its own holders, and its waiters."""
    backend, here = entry.backend, _waiting_here(entry.backend)
    if not backend.needs_site_key:
        everything = (replace(info, waiters=info.waiters or 0) for info in backend.inspect())
        return chosen((_awaited(info, here) for info in everything), query, datetime.now(UTC))
    names = entry.known_names() if backend.keeps_notes else {}
    mine = _mine(backend) if backend.keeps_notes else []
    part = query.text.casefold()
    matching = [key for key, name in names.items() if part in name.casefold()] if part else []
    # the server does not see the callers that wait in this process
    asked = LockQuery() if here and query.minds_waiters else query
    found = backend.select(asked, mine, matching)
    if found is not None:
        locks = [_awaited(_named(info, names), here) for info in found.locks]
        return found._replace(locks=locks) if asked is query else chosen(locks, query, datetime.now(UTC))
    held = {(each.key, each.session): each for each in mine}
    infos = (_awaited(_known(_named(info, names), held), here) for info in backend.inspect())
    return chosen(chain(infos, backend.blocking()), query, datetime.now(UTC))


def _mine(backend: Backend) -> list[Mine]:
    """The holds of this process. Of readers that share one session only the first, because the server sees one."""
    found: dict[tuple[str, str], Mine] = {}
    for hold in sorted(lock_table.held(backend), key=lambda hold: hold.held_at):
        if (grant := hold.grant) is not None:
            key, session = backend.listed_as(hold.key), str(backend.server_session(grant))
            mine = Mine(
                key=key, session=session, name=hold.key.name, held_at=hold.held_at, holder=describe_holder(hold)
            )
            found.setdefault((key, session), mine)
    return list(found.values())


def _named(info: LockInfo, names: Mapping[str, str]) -> LockInfo:
    return replace(info, name=names[info.key]) if info.name is None and info.key in names else info


def _known(info: LockInfo, held: Mapping[tuple[str, str], Mine]) -> LockInfo:
    mine = held.get((info.key, info.details.get("connection", "")))
    if mine is None:
        return info
    since, server = datetime.now(UTC) - timedelta(seconds=clock.now() - mine.held_at), info.holder or ""
    for said in (mine.holder, this_process()):
        server = server.removeprefix(f"{said}, ")
    return replace(info, acquired_at=since, holder=f"{mine.holder}, {server}")


def _waiting_here(backend: Backend) -> dict[str, list[str]]:
    """The callers that queue in this process for a lock that another of its callers holds or requests."""
    queues = defaultdict(list)
    for hold in lock_table.all():
        if hold.waits and hold.backend is backend:
            queues[backend.listed_as(hold.key)].append(describe_holder(hold))
    return queues


def _awaited(info: LockInfo, here: Mapping[str, list[str]]) -> LockInfo:
    queue = here.get(info.key)
    if not queue:
        return info
    return replace(info, waiters=(info.waiters or 0) + len(queue), waiting=(*info.waiting, *queue)[:MOST_WAITING])
