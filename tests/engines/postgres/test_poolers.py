"""pgbouncer by its modes: in session mode lock sessions work, in transaction mode they are refused, however its pool is
filled."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, LockLost, LockTimeout, UnsupportedOperation, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.own_servers import SessionPooler, SmallSessionPooler, TurningPooler, needs_programs, running
from tests.faults.conftest import database_alias
from tests.faults.server import ask, end_session, holders, key_of, session_of, waiters
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.services.databases import Pgbouncer

pytestmark = [pytest.mark.usefixtures("databases"), needs_programs]


@contextmanager
def behind(settings: Any, kind: type[Pgbouncer]) -> Iterator[str]:
    """The lock alias "postgres" of this process, but not of others, and the database alias "bounced" are reached
    through such a pgbouncer."""
    with (
        running(kind, "pgbouncer") as port,
        database_alias("bounced", "postgres", HOST="127.0.0.1", PORT=str(port)) as alias,
    ):
        options = {"database": alias}
        settings.DISTLOCK = {**settings.DISTLOCK, "postgres": {**settings.DISTLOCK["postgres"], "OPTIONS": options}}
        registry.reset()
        try:
            yield alias
        finally:
            registry.reset()


def open_to_others(name: str) -> bool:
    """Can another session, which comes directly, take it?"""
    sql = "SELECT pg_try_advisory_lock(%s) AND pg_advisory_unlock(%s)"
    number = key_of("postgres", name).number
    return bool(ask("postgres", sql, number, number)[0][0])


def test_session_mode(settings: Any, name: str) -> None:
    """The lock is held by one server session, whose number is told; waiting, timing out and losing it work as well."""
    with behind(settings, SessionPooler):
        with advisory_lock(name, using="postgres") as lease:
            assert holders("postgres", name) == [session_of(lease).server_id]
            assert not open_to_others(name)
        assert open_to_others(name)

        number = key_of("postgres", name).number
        ask("postgres", "SELECT pg_advisory_lock(%s)", number)
        with pytest.raises(LockTimeout):
            advisory_lock(name, using="postgres", timeout=0.2).acquire()
        eventually(lambda: not waiters("postgres", name), "it waits on")
        got: list[int] = []
        given, seen = threading.Event(), threading.Event()

        def wait() -> None:
            with advisory_lock(name, using="postgres") as lease:
                got.append(session_of(lease).server_id)
                given.set()
                seen.wait(10)

        thread = threading.Thread(target=wait)
        thread.start()
        eventually(lambda: waiters("postgres", name), "does not wait")
        ask("postgres", "SELECT pg_advisory_unlock(%s)", number)
        assert given.wait(10)
        assert holders("postgres", name) == got
        seen.set()
        thread.join(10)

        lease = advisory_lock(name, using="postgres").acquire()
        end_session("postgres", session_of(lease).server_id)
        with pytest.raises(LockLost):
            lease.release()


def server_session(connection: Any, *, commit: bool = False) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = int(cursor.fetchone()[0])
    if commit:
        connection.commit()
    return pid


def test_transaction_mode_with_an_idle_pool(settings: Any, name: str) -> None:
    """Each of our two connections gets another server session, as it would in session mode: a pool that gives away its
    longest idle session first is enough for that. Operators are told as well."""
    with behind(settings, TurningPooler) as alias:
        several = [connections[alias].copy() for _ in range(4)]
        try:
            for connection in several:
                connection.set_autocommit(False)
                server_session(connection)
            for connection in several:
                connection.commit()
            assert len({server_session(several[0], commit=True) for _ in several}) > 1  # the pool does turn
        finally:
            for connection in several:
                connection.close()
        backend = registry.entry("postgres").backend
        for attempt in (advisory_lock(name, using="postgres").acquire, backend.inspect):
            with pytest.raises(UnsupportedOperation, match=r"transaction mode.*session_database"):
                attempt()
        assert open_to_others(name)


def test_r22b_no_room_for_a_second_session(settings: Any, name: str) -> None:
    """It cannot be told whether the server excludes: within the caller's time that is an error, and not a lock."""
    with behind(settings, SmallSessionPooler):
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="a second session asks whether the server excludes it"):
            advisory_lock(name, using="postgres", timeout=0.7).acquire()
        within(time.monotonic() - began, 1.2, least=0.6)
        assert open_to_others(name)
