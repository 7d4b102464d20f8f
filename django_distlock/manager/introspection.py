"""What is held now, by anybody, and how an operator takes it away."""

from __future__ import annotations

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
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.concurrency.text import one_line
from django_distlock.exceptions import DistlockError
from django_distlock.records import MOST_WAITING, BackendReport, LockInfo

from . import events
from .lock_table import State, lock_table
from .name_log import describe_holder, this_process
from .registry import Entry, registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_distlock.backends.base import Backend

logger = logging.getLogger("django_distlock.operations")

# So long who looks waits for all aliases together; seconds. Each statement has two.
PATIENCE = 2.5
# Threads that look at one alias at the same time. Where names of hosts cannot be resolved, each may hang for minutes.
MOST_LOOKS = 8

_looking: defaultdict[str, threading.Semaphore] = defaultdict(lambda: threading.Semaphore(MOST_LOOKS))
at_fork(Order.THREADS, child=_looking.clear)


def held_locks(using: str | None = None) -> list[BackendReport]:
    """The held locks of one alias, or of all: one report per alias.

    On PostgreSQL, MySQL and MariaDB also the locks on tables and rows of the alias's database that keep somebody
    waiting: ``details["kind"]`` is "relation" or "row", ``details["blocks"]`` the sessions that wait.

    A backend that does not answer is data, not an exception: its report has ``error``, the class of the error. The
    error itself, which may hold an address, goes to the log only. All are asked side by side and have 2.5 s together;
    who takes longer has the error "TimeoutError".
    """
    return [replace(report, locks=tuple(found.locks)) for report, found in ask(LockQuery(), using)]


def ask(query: LockQuery, using: str | None = None) -> list[AliasAnswer]:
    """What each alias, or the one, has for ``query``; errors are as in :func:`held_locks`."""
    aliases = [using] if using is not None else registry.aliases()
    for alias in aliases:
        _load(alias)
    looks = [_Look(alias, query) for alias in aliases]
    until = monotonic() + PATIENCE
    return [look.answer(until) for look in looks]


def _load(alias: str) -> None:
    """Before the time begins: the first look of a process may have to import a driver, which can take seconds."""
    with suppress(Exception):  # the look meets it again, and tells it
        registry.entry(alias).backend.load()


def break_lock(info: LockInfo, *, reason: str = "") -> bool:
    """Take a lock away from the very holder that ``info``, of :func:`held_locks`, shows.

    True if that holder had it and has lost it; False if it had gone, whoever has the lock now. The victim is told as of
    any loss: ``lease.lost``, :class:`LockLost`, the signal ``lock_lost``. The signal ``lock_broken`` is sent, with
    ``reason``, which should say who did it and why.

    UnsupportedOperation where the engine cannot, and for locks on tables and rows; BackendUnavailable if the server
    does not answer. On PostgreSQL and MySQL the session that holds the lock is ended, with all its locks.
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
    """Of one alias: how it is, and what it has."""

    report: BackendReport
    found: Chosen = Chosen((), 0, 0)


class _Look:
    """One alias, asked in a thread of its own, which goes on by itself if nobody waits for it any more."""

    def __init__(self, alias: str, query: LockQuery) -> None:
        self._alias = alias
        self._query = query
        self._outcome: AliasAnswer | Exception | None = None
        self._thread: threading.Thread | None = None
        self._place = _looking[alias]
        self._begin(0.0)

    def _begin(self, patience: float) -> None:
        """As soon as there is a place."""
        if self._thread is None and self._place.acquire(timeout=patience):
            thread = threading.Thread(target=self._run, name=f"distlock-list-{self._alias}", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError as error:  # there is no thread to be had
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
        """What was found by the monotonic time ``until``."""
        self._begin(max(0.0, until - monotonic()))
        if self._thread is not None:
            self._thread.join(max(0.0, until - monotonic()))
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
    """With what only this process knows: the names that it has used, what it holds itself, who waits in it."""
    backend, here = entry.backend, _waiting_here(entry.backend)
    if not backend.needs_site_key:
        everything = (replace(info, waiters=info.waiters or 0) for info in backend.inspect())
        return chosen((_awaited(info, here) for info in everything), query, datetime.now(UTC))
    names = entry.known_names() if backend.keeps_notes else {}
    mine = _mine(backend) if backend.keeps_notes else []
    part = query.text.casefold()
    matching = [key for key, name in names.items() if part in name.casefold()] if part else []
    # of those who wait here the server knows nothing
    asked = LockQuery() if here and query.minds_waiters else query
    found = backend.select(asked, mine, matching)
    if found is not None:
        locks = [_awaited(_named(info, names), here) for info in found.locks]
        return found._replace(locks=locks) if asked is query else chosen(locks, query, datetime.now(UTC))
    held = {(each.key, each.session): each for each in mine}
    infos = (_awaited(_known(_named(info, names), held), here) for info in backend.inspect())
    return chosen(chain(infos, backend.blocking()), query, datetime.now(UTC))


def _mine(backend: Backend) -> list[Mine]:
    """What this process holds; of readers who share one session it is the first, because the server knows of one."""
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
    since, server = datetime.now(UTC) - timedelta(seconds=monotonic() - mine.held_at), info.holder or ""
    for said in (mine.holder, this_process()):
        server = server.removeprefix(f"{said}, ")
    return replace(info, acquired_at=since, holder=f"{mine.holder}, {server}")


def _waiting_here(backend: Backend) -> dict[str, list[str]]:
    """Who queues in this process, behind its holder or behind the one of its contexts that asks the engine."""
    queues = defaultdict(list)
    for hold in lock_table.unfinished():
        if hold.state is State.WAITING and hold.backend is backend:
            queues[backend.listed_as(hold.key)].append(describe_holder(hold))
    return queues


def _awaited(info: LockInfo, here: Mapping[str, list[str]]) -> LockInfo:
    queue = here.get(info.key)
    if not queue:
        return info
    return replace(info, waiters=(info.waiters or 0) + len(queue), waiting=(*info.waiting, *queue)[:MOST_WAITING])
