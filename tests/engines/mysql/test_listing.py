"""What is listed on MySQL and MariaDB by those who may not see everything: all that is known, and nothing invented."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

import MySQLdb
import pytest
from django.db import connections

from django_distlock import UnsupportedOperation, advisory_lock, break_lock, held_locks
from django_distlock.backends.mysql import introspection
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.conftest import eventually
from tests.engines.actors import hold, share_and_write
from tests.engines.mysql.test_backend import plain_user
from tests.faults.server import ask, holders, is_mariadb, key_of, noted, waiters
from tests.support.processes import Child

if TYPE_CHECKING:
    from django_distlock.records import LockInfo

__all__ = ["plain_user"]
pytestmark = pytest.mark.usefixtures("databases")


def shown(key: str) -> list[LockInfo]:
    (report,) = held_locks("mysql")
    assert report.error is None
    return [info for info in report.locks if info.key == key]


def test_the_locks_of_another_user_are_listed(plain_user: str, name: str) -> None:
    """The process list shows a user without PROCESS only his own connections; MySQL shows him no locks either, but for
    those whose names are noted."""
    key = key_of("mysql", name).text
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        if not is_mariadb():
            eventually(lambda: noted("mysql", name), "it is not noted")
        eventually(lambda: shown(key), "the lock of another user is not listed")
        (info,) = shown(key)
        assert info.details["connection"] == str(holders("mysql", name)[0])
        assert str(info.holder).endswith(f"connection {info.details['connection']}")
        assert "None" not in str(info.holder)
        child.say()
        assert child.hear() == "released"


def test_the_privileges_that_the_documentation_asks_for_are_enough(plain_user: str, name: str) -> None:
    rights = ["PROCESS ON *.*"]
    if not is_mariadb():
        tables = ("metadata_locks", "threads", "events_statements_current", "setup_instruments")
        rights = [f"SELECT ON performance_schema.{table}" for table in tables]
    for right in rights:
        ask("mysql", f"GRANT {right} TO '{plain_user}'@'127.0.0.1'")
    key = key_of("mysql", name).text
    account = connections["mariadb"].settings_dict["USER"]
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        with Child(share_and_write, "mysql", name) as waiter:
            assert waiter.hear() == "asking"
            eventually(lambda: waiters("mysql", name), "nobody waits")
            (info,) = shown(key)
            assert f"{account}@" in str(info.holder)
            assert info.waiters == 1
            assert f"{account}@" in info.waiting[0]
            assert info.details["connection"] == str(holders("mysql", name)[0])
            child.say()
            assert child.hear() == "released"
            assert waiter.hear()
            waiter.say()
    told = [finding.text for finding in diagnose("mysql") if finding.level == "warning"]
    assert not [text for text in told if "privilege" in text or "does not show" in text]


def test_those_who_came_within_one_second_are_listed_in_order(name: str) -> None:
    """The process list of MySQL counts whole seconds."""
    key = key_of("mysql", name).text
    rivals = [MySQLdb.connect(**connections["mariadb"].get_connection_params()) for _ in range(6)]
    random.shuffle(rivals)
    order = [rival.thread_id() for rival in rivals]

    def wait(rival: Any) -> None:
        rival.query(f"SELECT GET_LOCK('{key}', 20)")
        rival.close()

    threads = [threading.Thread(target=wait, args=(rival,)) for rival in rivals]
    with advisory_lock(name, using="mysql"):
        for count, thread in enumerate(threads, 1):
            thread.start()
            eventually(lambda: len(waiters("mysql", name)) == count, "nobody waits")  # noqa: B023 - at once
            for _ in range(400):  # MySQL lists them as they lie in its memory, whose places are given out in a circle
                ask("mysql", "SELECT name FROM django_distlock_name LIMIT 1")
        (info,) = shown(key)
    for thread in threads:
        thread.join(20)
    assert [int(each.rpartition(" ")[2]) for each in info.waiting] == order


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server without the plugin: the tables that list locks are not there."""
    for each in ("MARIADB", "MYSQL"):
        monkeypatch.setattr(introspection, each, "SELECT * FROM information_schema.NO_SUCH_PLUGIN")


@pytest.mark.usefixtures("unseen")
def test_a_server_that_lists_no_locks_is_asked_for_the_names_that_were_noted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A web process that has used no lock so far, and the page of held locks."""
    backend: Any = registry.entry("mysql").backend
    key = key_of("mysql", name).text
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        eventually(lambda: noted("mysql", name), "it is not noted")
        monkeypatch.setattr(backend, "known_names", dict)
        (info,) = shown(key)
        assert (info.name, info.waiters) == (name, None), "who waits cannot be told"
        assert info.details["connection"] == str(holders("mysql", name)[0])
        child.say()
        assert child.hear() == "released"
    assert shown(key) == []


@pytest.mark.usefixtures("unseen")
def test_what_is_not_noted_but_known_here_is_listed_too(name: str) -> None:
    key = key_of("mysql", name).text
    with advisory_lock(name, using="mysql"):
        (info,) = shown(key)
        assert (info.name, info.waiters) == (name, None)
        assert "@" not in str(info.holder) or "@127" in str(info.holder) or "@localhost" in str(info.holder)


def test_an_error_that_is_no_privilege_is_not_an_empty_list(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nobody must read "nothing is held" where the server has only refused to say."""
    for each in ("MARIADB", "MYSQL"):
        monkeypatch.setattr(introspection, each, "SELECT 1 AS lock_name FROM DUAL WHERE 1 = (SELECT 1 UNION SELECT 2)")
    (report,) = held_locks("mysql")
    assert report.error


def test_a_lock_that_is_not_ours_cannot_be_broken(name: str) -> None:
    """Other programs use GET_LOCK with names of their own; False would say that the holder has gone."""
    foreign = f"Somebody's Lock {name}"[:60]
    listed = foreign if is_mariadb() else foreign.lower()  # MySQL folds case
    assert ask("mysql", "SELECT GET_LOCK(%s, 0)", foreign)[0][0] == 1
    try:
        (info,) = shown(listed)
        with pytest.raises(UnsupportedOperation, match="not one of ours"):
            break_lock(info)
    finally:
        ask("mysql", "SELECT RELEASE_LOCK(%s)", foreign)
