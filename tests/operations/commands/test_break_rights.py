"""Who may end a session, and which one: the server decides, and what it says is passed on."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import UnsupportedOperation, advisory_lock, break_lock, held_locks
from django_distlock.backends.mysql.session import MySQLSession
from django_distlock.manager.registry import registry
from django_distlock.records import LockInfo
from tests.conftest import eventually
from tests.engines.actors import hold
from tests.engines.mysql.test_backend import plain_user
from tests.engines.postgres.test_backend import on
from tests.faults.conftest import database_alias
from tests.faults.server import ask, holders, key_of, session_exists, session_of
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["plain_user"]
pytestmark = pytest.mark.usefixtures("databases")


@pytest.fixture
def plain_role(databases: None, settings: Any) -> Iterator[str]:
    """A role of PostgreSQL that may use the database and nothing else."""
    role = f"distlock_plain_{os.getpid()}"
    ask("postgres", f"CREATE ROLE {role} LOGIN PASSWORD 'plain'")
    with database_alias("plain", "postgres", USER=role, PASSWORD="plain"):
        on(settings, "plain")
        yield role
        registry.close()
    eventually(lambda: not ask("postgres", "SELECT 1 FROM pg_stat_activity WHERE usename = %s", role), "still there")
    ask("postgres", f"DROP ROLE {role}")


def test_postgres_names_the_right_that_is_missing(plain_role: str, name: str) -> None:
    """The names' table belongs to another role too: the listing goes without."""
    with Child(hold, "postgres", name) as child:
        assert child.hear() == "held"
        key = str(key_of("postgres", name).number)
        info = next(info for info in held_locks("postgres")[0].locks if info.key == key)
        with pytest.raises(UnsupportedOperation, match="pg_signal_backend") as caught:
            break_lock(info)
        assert caught.value.__cause__ is not None
        assert session_exists("postgres", int(info.details["pid"]))
        child.say()
        assert child.hear() == "released"


def test_mysql_names_the_right_that_is_missing(plain_user: str, name: str) -> None:
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        (session,) = holders("mysql", name)
        info = LockInfo(backend="mysql", key=key_of("mysql", name).text, details={"connection": str(session)})
        with pytest.raises(UnsupportedOperation, match="CONNECTION_ADMIN"):
            break_lock(info)
        child.say()
        assert child.hear() == "released"


def test_a_process_id_that_came_again_is_left_alone(name: str) -> None:
    """Another session with the same number has another start; a hold that is noted, another beginning."""
    with advisory_lock(name, using="postgres") as lease:
        info = next(info for info in held_locks("postgres")[0].locks if info.name == name)
        assert info.details["pid"] == str(lease._grant.session.server_id)
        for changed in ({"backend_start": "1.5"}, {"noted": "1"}, {"pid": "1"}, {"pid": "x"}, {"backend_start": "'"}):
            assert break_lock(replace(info, details={**info.details, **changed})) is False
        assert break_lock(replace(info, key=str(2**63))) is False
        lease.ensure_held()


def test_mysql_compares_when_it_ends_the_session(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder gives the lock back at the last moment: its session, which holds another one, is left alone."""
    with advisory_lock(name + "2", using="mysql") as other:
        lease = advisory_lock(name, using="mysql").acquire()
        assert session_of(lease) is session_of(other)
        info = next(info for info in held_locks("mysql")[0].locks if info.key == key_of("mysql", name).text)
        sent: list[bytes] = []

        def query(session: MySQLSession, sql: bytes, *rest: Any) -> Any:
            if b"KILL CONNECTION" in sql:
                sent.append(sql)
                lease.release()
            return plain(session, sql, *rest)

        plain = MySQLSession.query
        monkeypatch.setattr(MySQLSession, "query", query)
        assert break_lock(info) is False
        assert len(sent) == 1
        other.ensure_held()
        assert session_exists("mysql", session_of(other).server_id)


@pytest.mark.parametrize("key", ["' OR 1 = 1 -- ", "", "x" * 65, "UPPER", "a\\"])
def test_what_is_no_key_does_not_reach_mysql(key: str) -> None:
    info = LockInfo(backend="mysql", key=key, details={"connection": "1"})
    with pytest.raises(UnsupportedOperation, match="not one of ours"):
        break_lock(info)


def test_what_a_session_holds_besides_is_told(name: str) -> None:
    """PostgreSQL is told the names that are not written down yet."""
    for using in ("postgres", "mysql"):
        with advisory_lock(name, using=using), advisory_lock(name + "2", using=using):
            shown = [info for info in held_locks(using)[0].locks if info.name == name]
            other = key_of(using, name + "2").text if using == "mysql" else name + "2"
            assert [info.details["also_holds"] for info in shown] == [other]
