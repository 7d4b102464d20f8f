"""PostgreSQL inside atomic(): the lock is on the caller's own connection, and needs nothing else."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import close_old_connections, connections, transaction
from django.test import TestCase, TransactionTestCase
from django.test.utils import CaptureQueriesContext

from django_distlock import advisory_lock, lock_all
from django_distlock.manager.registry import registry
from tests.engines.statements import counted
from tests.manager.transactions import rows
from tests.manager.transactions.rival import is_out
from tests.manager.transactions.world import WRAPPED, swallow

if TYPE_CHECKING:
    from tests.manager.transactions.world import World


def lock_sessions(alias: str) -> int:
    """How many lock sessions of any process the server has open on this database."""
    with connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name LIKE 'distlock %%' AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.usefixtures("patient")
def test_r11_no_session_is_opened(postgres: World) -> None:
    """Neither for a free lock nor for one that is waited for, nor for a set."""
    world = postgres
    backend: Any = registry.entry("postgres").backend
    registry.close()
    before = lock_sessions("postgres")
    with transaction.atomic("postgres"):
        with world.lock():
            world.write()
        with lock_all([world.name + "-a", world.name + "-b"], using="postgres"):
            pass
        world.rival.say(["wait", "postgres", world.name + "-busy", "postgres"])
        assert world.rival.hear() == "waiting"
        world.rival.hear()
        opened_by_rival = lock_sessions("postgres") - before
        assert advisory_lock(world.name + "-busy", using="postgres").try_acquire(0.05) is None
        assert lock_sessions("postgres") - before == opened_by_rival
    world.rival.say(["release"])
    world.rival.hear()
    assert not backend.sessions.all()


def test_r11_statements_inside_atomic_on_postgresql(postgres: World) -> None:
    """1 + 0: one to acquire, none to release, and none of our own at the end; for the client and for the server."""
    world = postgres
    with transaction.atomic("postgres"):
        rows.count("postgres", world.name)
        with CaptureQueriesContext(world.connection) as queries:
            with world.lock():
                pass
            assert len(queries) == 1
            assert "pg_try_advisory_xact_lock" in queries[0]["sql"]
            with world.lock(), world.lock():
                pass
            assert len(queries) == 2, "entered again after its block: asked once; entered again inside: not asked"
    with counted("postgres") as calls, transaction.atomic("postgres"), world.lock():
        pass
    locks = {text: count for text, count in calls.items() if "advisory" in text or "distlock" in text}
    assert sum(locks.values()) == 1, locks


def test_r11_statements_inside_atomic_on_mariadb(make_world: Any) -> None:
    """1 + 1 on a session of its own, the second one after the transaction; none on the caller's connection."""
    world = make_world("mysql", "mariadb")
    with world.lock():  # the session is open
        pass
    with counted("mysql") as calls, transaction.atomic("mariadb"):
        with CaptureQueriesContext(world.connection) as queries, world.lock():
            world.write()
        assert len(queries) == 1
        assert "INSERT" in queries[0]["sql"]
        assert sum(count for text, count in calls.items() if "RELEASE" in text) == 0
    locks = {text: count for text, count in calls.items() if "LOCK" in text.upper() and "INSERT" not in text}
    assert sum(locks.values()) == 2, locks


@pytest.mark.parametrize("using", ["leasetable_postgres", "leasetable_mariadb", "leasetable", "mysql"])
def test_r11_nothing_is_asked_on_the_callers_connection(make_world: Any, using: str) -> None:
    alias = {"leasetable": "default", "leasetable_postgres": "postgres"}.get(using, "mariadb")
    world = make_world(using, alias)
    with transaction.atomic(alias):
        rows.count(alias, world.name)
        with CaptureQueriesContext(connections[alias]) as queries:
            with world.lock():
                pass
            with world.lock():
                pass
        assert len(queries) == 0


def test_r11_on_commit_hooks_of_a_test_are_the_users_own(one_world: World) -> None:
    """``captureOnCommitCallbacks`` sees none of ours, and running them takes nothing away."""
    world = one_world
    mine: list[int] = []
    with transaction.atomic(world.alias):
        with TestCase.captureOnCommitCallbacks(using=world.alias, execute=True) as callbacks, world.lock():
            transaction.on_commit(lambda: mine.append(1), using=world.alias)
        assert len(callbacks) == 1
        assert mine == [1]
        world.write()
        world.still_inside()
    world.check_rival_came_in(1)


def test_r11_inside_a_test_case(one_world: World) -> None:
    """The transaction ends with the test, and so does the lock; the test itself may take it as often as it likes."""
    world = one_world

    class Inside(TestCase):
        databases = frozenset({world.alias})

        def test_twice(self) -> None:
            for _ in range(2):
                with world.lock() as lease:
                    lease.ensure_held()
                    world.write()
            with transaction.atomic(world.alias), world.lock():
                pass
            with transaction.atomic(world.alias, durable=True), world.lock():
                pass
            world.still_inside()

    run(Inside)
    world.check_rival_came_in(0)
    world.check_connection_is_clean()


def test_r11_inside_a_transaction_test_case(one_world: World) -> None:
    """No transaction around the test: a lock is free when its block ends."""
    world = one_world

    class Outside(TransactionTestCase):
        databases = frozenset({world.alias})
        available_apps = ()

        def _fixture_teardown(self) -> None:  # this test wrote one row, in a table that flush does not know
            pass

        def test_once(self) -> None:
            with world.lock():
                world.write()
                assert is_out(world.rival, world.using, world.name)
            assert not is_out(world.rival, world.using, world.name)

    run(Outside)
    assert rows.count(world.alias, world.name) == 1


def run(case: Any) -> None:
    import unittest

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    for _, trace in [*result.errors, *result.failures]:
        raise AssertionError(trace)
    assert result.testsRun == 1


@pytest.mark.parametrize("age", [0, None])
def test_session_lock_survives_old_connections(one_world: World, age: int | None) -> None:
    """CONN_MAX_AGE=0 and ``close_old_connections()``, which ends every request, take no lock along."""
    world = one_world
    settings = world.connection.settings_dict
    before, settings["CONN_MAX_AGE"] = settings["CONN_MAX_AGE"], age
    try:
        with world.lock() as lease:
            world.write()
            close_old_connections()
            world.connection.close()
            connections.close_all()
            lease.ensure_held()
            world.still_inside()
        world.check_rival_came_in(1)
    finally:
        settings["CONN_MAX_AGE"] = before


def test_r1_two_threads_of_one_process_with_transactions_of_their_own(postgres: World) -> None:
    """Four threads, each in a transaction: one at a time from the lock to the commit."""
    world = postgres
    inside = threading.Lock()
    errors: list[object] = []

    def work() -> None:
        try:
            for _ in range(5):
                with transaction.atomic("postgres"):
                    with world.lock():
                        if not inside.acquire(blocking=False):
                            errors.append("two are inside")
                        before = rows.count("postgres", world.name)
                    rows.write("postgres", world.name)
                    assert rows.count("postgres", world.name) == before + 1
                    inside.release()
        except Exception as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert rows.count("postgres", world.name) == 20


def test_r11_wrappers_are_not_inherited_by_copies(postgres: World) -> None:
    """A copy of a connection that somebody makes meanwhile has none of them."""
    world = postgres
    with transaction.atomic("postgres"):
        with world.lock():
            pass
        copy = connections["postgres"].copy()
        assert not {"_distlock_watch", *WRAPPED} & set(copy.__dict__)
        copy.close()
        with swallow(ZeroDivisionError), transaction.atomic("postgres"):
            raise ZeroDivisionError
        assert is_out(world.rival, "postgres", world.name)
