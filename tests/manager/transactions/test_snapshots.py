"""R13: the snapshot of a REPEATABLE READ or SERIALIZABLE transaction can be older than the lock: such locks warn."""

from __future__ import annotations

import contextlib
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections, transaction
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from django.test.utils import CaptureQueriesContext

from django_distlock import advisory_lock
from django_distlock.manager.isolation import StaleSnapshotWarning
from tests.faults.server import is_mariadb
from tests.manager.transactions import rows
from tests.manager.transactions.reconnecting import options

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.manager.transactions.world import World

STALE = ("REPEATABLE READ", "SERIALIZABLE")


def set_level(alias: str, level: str) -> None:
    with connections[alias].cursor() as cursor:
        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")


@contextlib.contextmanager
def warned(name: str, level: str, alias: str) -> Iterator[None]:
    """Exactly one warning, which names the lock, the level, the alias and the fix, at the line of the caller."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert [type(warning.message) for warning in caught] == [StaleSnapshotWarning]
    text = str(caught[0].message)
    for part in (repr(name), level, repr(alias), "before atomic()", "READ COMMITTED"):
        assert part in text
    assert caught[0].filename == __file__


@contextlib.contextmanager
def silent() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    assert not caught


@pytest.mark.parametrize("level", STALE)
def test_r13_stale_read_under_the_lock_is_shown_and_warned_of(make_world: Any, level: str) -> None:
    """The fault: the lock is the first statement, the holder commits before it gives the lock away, and what it wrote
    is not seen. With the lock around the transaction it is."""
    world = make_world("postgres", "postgres")
    writer = connections["postgres"].copy()
    writer.ensure_connection()
    try:
        with warned(world.name, level, "postgres"), transaction.atomic("postgres"):
            set_level("postgres", level)
            lease = world.lock().acquire()
            with writer.cursor() as cursor:
                cursor.execute("INSERT INTO distlock_written VALUES (%s)", [world.name])
            lease.ensure_held()
            assert rows.count("postgres", world.name) == 0, "the snapshot is the one of the lock's own statement"
    finally:
        writer.close()
    with silent(), world.lock(), transaction.atomic("postgres"):
        set_level("postgres", level)
        assert rows.count("postgres", world.name) == 1


@pytest.mark.parametrize("level", STALE)
def test_r13_level_from_the_settings(make_world: Any, level: str) -> None:
    world = make_world("postgres", "postgres")
    with options("postgres", isolation_level=IsolationLevel[level.replace(" ", "_")]):
        with warned(world.name, level, "postgres"), transaction.atomic("postgres"):
            world.lock().acquire()
        with silent(), world.lock(), transaction.atomic("postgres"):
            world.write()


@pytest.mark.parametrize("face", ["with", "acquire", "decorator", "try_acquire", "wait"])
def test_r13_warning_points_at_the_callers_line(make_world: Any, face: str) -> None:
    world = make_world("postgres", "postgres")

    def take() -> None:
        if face == "with":
            with world.lock():
                pass
        elif face == "acquire":
            world.lock().acquire()
        elif face == "try_acquire":
            world.lock().try_acquire(timeout=2)
        elif face == "wait":
            world.lock().acquire(timeout=None)
        else:
            world.lock()(abs)(1)

    with warned(world.name, "REPEATABLE READ", "postgres"), transaction.atomic("postgres"):
        set_level("postgres", "REPEATABLE READ")
        take()


def test_r13_reentry_does_not_warn_again(make_world: Any) -> None:
    world = make_world("postgres", "postgres")
    with warned(world.name, "SERIALIZABLE", "postgres"), transaction.atomic("postgres"):
        set_level("postgres", "SERIALIZABLE")
        with world.lock(), world.lock():
            pass


def test_r13_read_committed_is_silent(one_world: World) -> None:
    world = one_world
    with silent():
        with transaction.atomic(world.alias), world.lock():
            rows.count(world.alias, world.name)
        with world.lock():
            pass


@pytest.mark.parametrize("using", ["leasetable_postgres", "postgres"])
@pytest.mark.parametrize("level", STALE)
def test_r13_locks_that_live_elsewhere_warn_too(make_world: Any, using: str, level: str) -> None:
    """A lease, or a session lock because two databases are in a transaction: the level that the settings name."""
    world = make_world(using, "postgres")
    with contextlib.ExitStack() as stack:
        stack.enter_context(options("postgres", isolation_level=IsolationLevel[level.replace(" ", "_")]))
        stack.enter_context(warned(world.name, level, "postgres"))
        stack.enter_context(transaction.atomic("postgres"))
        if using == "postgres":
            stack.enter_context(transaction.atomic("default"))
        world.lock().acquire()


ELSEWHERE = ["leasetable_postgres", "postgres", "memory", "mysql"]


def inside(stack: contextlib.ExitStack, using: str) -> None:
    """A transaction on PostgreSQL around a lock that lives elsewhere."""
    stack.enter_context(transaction.atomic("postgres"))
    if using == "postgres":
        stack.enter_context(transaction.atomic("default"))


@pytest.mark.parametrize("using", ELSEWHERE)
@pytest.mark.parametrize("level", STALE)
def test_r13_level_set_by_hand_and_a_lock_that_lives_elsewhere(make_world: Any, using: str, level: str) -> None:
    world = make_world(using, "postgres")
    with contextlib.ExitStack() as stack:
        stack.enter_context(warned(world.name, level, "postgres"))
        inside(stack, using)
        set_level("postgres", level)
        world.lock().acquire()


@pytest.mark.parametrize("using", ELSEWHERE)
def test_r13_level_lowered_by_hand_is_silent(make_world: Any, using: str) -> None:
    world = make_world(using, "postgres")
    with options("postgres", isolation_level=IsolationLevel.SERIALIZABLE), contextlib.ExitStack() as stack:
        stack.enter_context(silent())
        inside(stack, using)
        set_level("postgres", "READ COMMITTED")
        world.lock().acquire()


def test_r13_asking_for_the_level_takes_no_snapshot_and_counts_as_no_query(make_world: Any) -> None:
    """PostgreSQL refuses SET TRANSACTION after the first snapshot; assertNumQueries must see no lock of elsewhere."""
    world = make_world("memory", "postgres")
    with (
        silent(),
        transaction.atomic("postgres"),
        CaptureQueriesContext(connections["postgres"]) as queries,
    ):
        set_level("postgres", "READ COMMITTED")
        world.lock().acquire()
        set_level("postgres", "SERIALIZABLE")
    assert len(queries) == 2


def test_r13_aborted_transaction_is_not_asked(make_world: Any) -> None:
    world = make_world("memory", "postgres")
    with options("postgres", isolation_level=IsolationLevel.SERIALIZABLE):
        with warned(world.name, "SERIALIZABLE", "postgres"), transaction.atomic("postgres"):
            with pytest.raises(DatabaseError):
                set_level("postgres", "NO SUCH LEVEL")
            world.lock().acquire()
            transaction.set_rollback(True, using="postgres")
        assert rows.count("postgres", world.name) == 0


def test_r13_task_is_warned_of_the_level_of_the_settings(make_world: Any) -> None:
    """Its transaction is that of a thread that waits for it, whose connection is not for others."""
    world = make_world("postgres", "postgres")

    async def work() -> None:
        await world.lock().aacquire()

    with options("postgres", isolation_level=IsolationLevel.SERIALIZABLE):
        with warnings.catch_warnings(record=True) as caught, transaction.atomic("postgres"):
            warnings.simplefilter("always")
            rows.count("postgres", world.name)
            async_to_sync(work)()
        assert [type(warning.message) for warning in caught] == [StaleSnapshotWarning]


@pytest.mark.parametrize("using", ["mysql", "leasetable_mariadb"])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_r13_mariadb(make_world: Any, using: str, level: str) -> None:
    """The fault there: once the transaction has read, it reads on from that snapshot, lock or no lock."""
    world = make_world(using, "mariadb")
    writer = connections["mariadb"].copy()
    writer.ensure_connection()
    try:
        with options("mariadb", isolation_level=level):
            with warned(world.name, level.upper(), "mariadb"), transaction.atomic("mariadb"):
                rows.count("mariadb", world.name + "-other")
                lease = world.lock().acquire()
                if level == "repeatable read":
                    with writer.cursor() as cursor:
                        cursor.execute("INSERT INTO distlock_written VALUES (%s)", [world.name])
                    assert rows.count("mariadb", world.name) == 0
                lease.ensure_held()
            with silent(), world.lock(), transaction.atomic("mariadb"):
                assert rows.count("mariadb", world.name) == (level == "repeatable read")
    finally:
        writer.close()


def isolation_variable() -> str:
    """MySQL 8 knows the old name no more, MariaDB before 11.1 the new one not yet."""
    return "tx_isolation" if is_mariadb() else "transaction_isolation"


@pytest.mark.parametrize("using", ["mysql", "leasetable_mariadb"])
def test_r13_mariadb_with_the_level_of_the_server(make_world: Any, using: str) -> None:
    """``isolation_level: None`` leaves it to the server, whose default is REPEATABLE READ."""
    world = make_world(using, "mariadb")
    with options("mariadb", isolation_level=None):
        with connections["mariadb"].cursor() as cursor:
            cursor.execute(f"SELECT @@{isolation_variable()}")
            assert cursor.fetchone() == ("REPEATABLE-READ",)
        with warned(world.name, "REPEATABLE READ", "mariadb"), transaction.atomic("mariadb"):
            rows.count("mariadb", world.name)
            world.lock().acquire()
        with (
            CaptureQueriesContext(connections["mariadb"]) as queries,
            transaction.atomic("mariadb"),
            warned(world.name, "REPEATABLE READ", "mariadb"),
        ):
            world.lock().acquire()
        assert not [query for query in queries if "isolation" in query["sql"]], "asked once a connection"


def test_r13_warning_as_an_error_leaves_nothing_held(make_world: Any) -> None:
    """Test suites turn warnings into errors; the attempt has failed then (R7)."""
    world = make_world("postgres", "postgres")
    with transaction.atomic("postgres"):
        set_level("postgres", "REPEATABLE READ")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(StaleSnapshotWarning):
                advisory_lock(world.name, using="postgres").acquire()
    world.check_connection_is_clean()


@pytest.mark.parametrize("using", ["mysql", "leasetable_mariadb"])
def test_r13_mariadb_does_not_tell_a_level_that_sql_has_set(make_world: Any, using: str) -> None:
    """What holds for one transaction is in no variable of the session: such a lock is not warned of, and the
    documentation says so."""
    world = make_world(using, "mariadb")
    with transaction.atomic("mariadb"):
        set_level("mariadb", "SERIALIZABLE")
        rows.count("mariadb", world.name)
        with connections["mariadb"].cursor() as cursor:
            cursor.execute(f"SELECT @@{isolation_variable()}")
            assert cursor.fetchone() == ("READ-COMMITTED",)
        with silent():
            world.lock().acquire()
