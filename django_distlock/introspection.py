"""What is held now, by anybody, and how an operator takes it away."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from . import signals
from .exceptions import DistlockError
from .holding import State
from .holdings import holdings
from .namebook import this_process, told
from .oneline import one_line
from .records import MOST_WAITING, BackendReport, LockInfo
from .registry import Entry, registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .backends.base import Backend
    from .holding import Holding

logger = logging.getLogger("django_distlock.introspection")

# So long who looks waits for all aliases together; seconds. Each statement has two.
PATIENCE = 2.5


def held_locks(using: str | None = None) -> list[BackendReport]:
    """The held locks of one alias, or of all: one report per alias.

    On PostgreSQL, MySQL and MariaDB also the locks on tables and rows of the alias's database that keep somebody
    waiting: ``details["kind"]`` is "relation" or "row", ``details["blocks"]`` the sessions that wait.

    A backend that does not answer is data, not an exception: its report has ``error``, the class of the error. The
    error itself, which may hold an address, goes to the log only. All are asked side by side and have 2.5 s together;
    who takes longer has the error "TimeoutError".
    """
    looks = [_Look(alias) for alias in ([using] if using is not None else registry.aliases())]
    until = time.monotonic() + PATIENCE
    return [look.report(until) for look in looks]


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
        signals.send(signals.lock_broken, backend, info.name or info.key, reason=reason)
    return broken


class _Look:
    """One alias, asked in a thread of its own, which goes on by itself if nobody waits for it any more."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._outcome: BackendReport | Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"distlock-list-{alias}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = _report(self._alias)
        except Exception as error:
            self._outcome = error

    def report(self, until: float) -> BackendReport:
        """What was found by the monotonic time ``until``."""
        self._thread.join(max(0.0, until - time.monotonic()))
        if isinstance(self._outcome, Exception):
            raise self._outcome
        if self._outcome is not None:
            return self._outcome
        logger.warning("The locks of alias %r cannot be listed: no answer within %g s", self._alias, PATIENCE)
        name = type(registry.entry(self._alias).backend).__name__
        return BackendReport(alias=self._alias, backend=name, error=TimeoutError.__name__)


def _report(alias: str) -> BackendReport:
    try:
        entry = registry.entry(alias)
    except ImproperlyConfigured as error:
        logger.warning("Alias %r: %s", alias, one_line(error))
        return BackendReport(alias=alias, backend="", error=type(error).__name__)
    backend = entry.backend
    name = type(backend).__name__
    try:
        locks = (*_completed(entry, backend.inspect()), *backend.blocking())
        return BackendReport(alias=alias, backend=name, locks=locks, breakable=backend.supports_break)
    except DistlockError as error:
        logger.warning("The locks of alias %r cannot be listed: %s", alias, one_line(error))
        return BackendReport(alias=alias, backend=name, error=type(error.__cause__ or error).__name__)


def _completed(entry: Entry, infos: Iterable[LockInfo]) -> Iterable[LockInfo]:
    """With what only this process knows: the names that it has used, what it holds itself, who waits in it."""
    backend = entry.backend
    if not backend.needs_site_key:
        return [_awaited(info, backend) for info in infos]
    if not backend.keeps_notes:
        return infos
    known = entry.known_names()
    mine = {
        (backend.listed_as(holding.key), str(backend.server_session(holding.grant))): holding
        for holding in holdings.held(backend)
        if holding.grant is not None
    }
    return [_known(info, known, mine) for info in infos]


def _known(info: LockInfo, known: Mapping[str, str], mine: Mapping[tuple[str, str], Holding]) -> LockInfo:
    if info.name is None and info.key in known:
        info = replace(info, name=known[info.key])
    holding = mine.get((info.key, info.details.get("pid") or info.details.get("connection", "")))
    if holding is None:
        return info
    since = datetime.now(UTC) - timedelta(seconds=time.monotonic() - holding.held_at)
    who, server = told(holding), info.holder or ""
    for said in (who, this_process()):
        server = server.removeprefix(f"{said}, ")
    return replace(info, acquired_at=since, holder=f"{who}, {server}")


def _awaited(info: LockInfo, backend: Backend) -> LockInfo:
    """Of a backend that nobody outside this process sees."""
    queue = [
        told(holding)
        for holding in holdings.unfinished()
        if holding.state is State.WAITING and holding.backend is backend and backend.listed_as(holding.key) == info.key
    ]
    return replace(info, waiters=len(queue), waiting=tuple(queue[:MOST_WAITING]))
