"""MySQL and MariaDB: what GET_LOCK answers when it is not 1, what an administrator may have set, and who is listed."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable, UnsupportedOperation, advisory_lock, break_lock, held_locks
from django_distlock.backends.mysql import introspection
from django_distlock.backends.mysql.session import MySQLSession
from django_distlock.concurrency.clock import now as monotonic
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.actors import held_elsewhere, share_and_write, waiting
from tests.faults import server
from tests.faults.conftest import database_alias
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django_distlock.records import LockInfo


pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture
def init_command(databases: None, alias: Any) -> Iterator[Callable[[str], str]]:
    """A database alias whose sessions begin with a statement, as an administrator may have it."""
    options = connections.settings["mariadb"]["OPTIONS"]
    with database_alias("tuned", "mariadb", OPTIONS=options) as tuned:

        def tune(statement: str) -> str:
            connections.settings[tuned]["OPTIONS"] = {**options, "init_command": statement}
            alias("mysql", database="mariadb", session_database=tuned)
            return tuned

        yield tune
        registry.close()


def test_null_is_not_acquired(init_command: Callable[[str], str], name: str) -> None:
    """Only 1 means acquired: of a name that is NULL the server says NULL."""
    init_command("SET sql_mode = 'PIPES_AS_CONCAT'")  # for every session: on a slow machine some end, and others open
    key = server.key_of("mysql", name)
    key.__dict__["text_bytes"] = b"' || NULL || '"
    with pytest.raises(BackendUnavailable, match="NULL"):
        registry.entry("mysql").backend.try_acquire(Claim(key=key))


def test_kill_query_does_not_end_the_wait(name: str) -> None:
    """KILL QUERY on GET_LOCK is an error or NULL, neither a grant nor the end: the caller waits on to his deadline."""
    with held_elsewhere("mysql", name) as let_go, waiting("mysql", name) as acquiring:
        for _ in range(5):
            found: list[int] = []
            # one look: whoever was just cancelled may not wait at the next one
            eventually(lambda found=found: found.extend(server.waiters("mysql", name)) or found, "nobody waits")
            server.cancel_statement("mysql", found[0])
            assert not acquiring.done()
        let_go()
        lease = acquiring.result(25)
    assert len(server.holders("mysql", name)) == 1
    lease.release()
    assert not server.holders("mysql", name)


def test_max_statement_time_of_the_server_does_not_count(init_command: Callable[[str], str], name: str) -> None:
    variable, value = server.statement_limit(0.1)
    alias = init_command(f"SET SESSION {variable} = {value}")
    assert server.ask(alias, f"SELECT @@{variable}")[0][0] == value
    with held_elsewhere("mysql", name) as let_go, waiting("mysql", name) as acquiring:
        let_go()
        lease = acquiring.result(25)
    assert server.session_of(lease).query(f"SELECT @@{variable}".encode())[0][0] == 0
    lease.release()


def test_r7_null_that_came_after_the_grant_leaves_nothing_held(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that is killed may have had its effect: the name is given back in any case."""
    statement = b"SELECT IF(GET_LOCK('%s', 0) = 1, NULL, 0)"
    monkeypatch.setattr(MySQLSession, "wait_lock", lambda session, key, *args: statement % key.text_bytes)
    backend: Any = registry.entry("mysql").backend
    key = server.key_of("mysql", name)
    backend._busy.add(key.digest, monotonic())  # so that it waits without trying first
    assert backend.try_acquire(Claim(key), 5) is None
    assert not server.holders("mysql", name)
    assert [session.dead for session in backend.sessions.all() if session.waits] == [None]


def test_r17_a_short_wait_timeout_does_not_free_the_lock(init_command: Callable[[str], str], name: str) -> None:
    """wait_timeout ends the session of an idle holder without a word: shown on a plain connection first."""
    alias = init_command("SET SESSION wait_timeout = 1")
    with advisory_lock(name, using="mysql") as lease:
        # after ours, which has been silent for longer when this one is ended
        naive = server.ask(alias, "SELECT CONNECTION_ID(), GET_LOCK('naive-wait-timeout', 0)")[0][0]
        eventually(lambda: not server.session_exists("mysql", naive), "wait_timeout does not end the plain connection")
        assert not server.user_locks("naive-wait-timeout")
        lease.ensure_held()
        assert server.holders("mysql", name) == [server.session_of(lease).server_id]


@pytest.fixture
def plain_user(databases: None, alias: Any) -> Iterator[str]:
    """A user who may use the database and see nothing of the server."""
    user = f"distlock_plain_{os.getpid()}"
    server.ask("mysql", f"CREATE USER '{user}'@'127.0.0.1' IDENTIFIED BY 'plain'")
    server.ask(
        "mysql", f"GRANT SELECT, INSERT ON `{connections['mariadb'].settings_dict['NAME']}`.* TO '{user}'@'127.0.0.1'"
    )
    with database_alias("plain", "mariadb", USER=user, PASSWORD="plain"):
        alias("mysql", database="plain")
        yield user
        registry.close()
    server.ask("mysql", f"DROP USER '{user}'@'127.0.0.1'")


def shown(key: str) -> list[LockInfo]:
    (report,) = held_locks("mysql")
    assert report.error is None
    return [info for info in report.locks if info.key == key]


def test_the_locks_of_another_user_are_listed_and_with_privileges_also_who_waits(plain_user: str, name: str) -> None:
    """A user without PROCESS is shown only his own connections; names that are noted are listed all the same."""
    key, account = server.key_of("mysql", name).text, connections["mariadb"].settings_dict["USER"]
    rights = ["PROCESS ON *.*"]
    if not server.is_mariadb():
        tables = ("metadata_locks", "threads", "events_statements_current", "setup_instruments")
        rights = [f"SELECT ON performance_schema.{table}" for table in tables]
    with held_elsewhere("mysql", name) as let_go, Child(share_and_write, "mysql", name) as waiter:
        assert waiter.hear() == "asking"
        eventually(
            lambda: server.waiters("mysql", name) and server.noted("mysql", name), "nobody waits, or it is not noted"
        )
        (info,) = shown(key)
        connection = str(server.holders("mysql", name)[0])
        assert info.details["connection"] == connection
        assert str(info.holder).endswith(f"connection {connection}")
        assert "None" not in str(info.holder)
        for right in rights:
            server.ask("mysql", f"GRANT {right} TO '{plain_user}'@'127.0.0.1'")
        registry.close()
        (info,) = shown(key)
        assert (info.details["connection"], info.waiters) == (connection, 1)
        assert all(f"{account}@" in str(each) for each in (info.holder, info.waiting[0]))
        let_go()
        assert waiter.hear()
        waiter.say()
    told = [finding.text for finding in diagnose("mysql") if finding.level == "warning"]
    assert not [text for text in told if "privilege" in text or "does not show" in text]


def listed_by(patch: pytest.MonkeyPatch, statement: str) -> None:
    for each in ("MARIADB", "MYSQL"):
        patch.setattr(introspection, each, statement)


def test_a_server_that_lists_no_locks_is_asked_for_names_that_were_noted(name: str, monkeypatch: Any) -> None:
    """Without the plugin the tables that list locks are not there. Asked by a process that has used no lock so far."""
    listed_by(monkeypatch, "SELECT * FROM information_schema.NO_SUCH_PLUGIN")
    key = server.key_of("mysql", name).text
    with held_elsewhere("mysql", name):
        eventually(lambda: server.noted("mysql", name), "it is not noted")
        monkeypatch.setattr(registry.entry("mysql").backend, "known_names", dict)
        (info,) = shown(key)
        assert (info.name, info.waiters) == (name, None), "who waits cannot be told"
        assert info.details["connection"] == str(server.holders("mysql", name)[0])
    assert shown(key) == []


def test_an_error_that_is_no_privilege_is_not_an_empty_list(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nobody must read "nothing is held" where the server has only refused to say."""
    listed_by(monkeypatch, "SELECT 1 AS lock_name FROM DUAL WHERE 1 = (SELECT 1 UNION SELECT 2)")
    (report,) = held_locks("mysql")
    assert report.error


def test_a_lock_that_is_not_ours_cannot_be_broken(name: str) -> None:
    """Other programs use GET_LOCK with names of their own; False would say that the holder has gone."""
    foreign = f"Somebody's Lock {name}"[:60]
    listed = foreign if server.is_mariadb() else foreign.lower()  # MySQL folds case
    assert server.ask("mysql", "SELECT GET_LOCK(%s, 0)", foreign)[0][0] == 1
    try:
        (info,) = shown(listed)
        with pytest.raises(UnsupportedOperation, match="not one of ours"):
            break_lock(info)
    finally:
        server.ask("mysql", "SELECT RELEASE_LOCK(%s)", foreign)


@contextmanager
def kill_query(session: int) -> Iterator[None]:
    """On whatever that session does, as fast as the server takes it."""
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set() and server.session_exists("mysql", session):
            for _ in range(20):
                server.cancel_statement("mysql", session)
        connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(flood)
        yield
        ended.set()


@pytest.mark.tier2
@pytest.mark.parametrize("in_task", [False, True], ids=["thread", "task"])
def test_r6_kill_query_on_a_release_costs_no_other_lock(in_task: bool, name: str) -> None:
    lock = advisory_lock(name, using="mysql")

    async def in_tasks(until: float) -> None:
        while time.monotonic() < until:
            async with lock:
                pass

    with advisory_lock(f"{name}-kept", using="mysql") as kept:
        session = server.session_of(kept)
        with kill_query(session.server_id):
            until = time.monotonic() + 1.0
            if in_task:
                asyncio.run(in_tasks(until))
            while time.monotonic() < until:
                with lock:
                    kept.ensure_held()
        assert not kept.lost
        assert server.holders("mysql", f"{name}-kept") == [session.server_id]
        assert not server.holders("mysql", name)
