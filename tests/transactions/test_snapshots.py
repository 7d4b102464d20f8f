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

from django_distlock.manager.isolation import StaleSnapshotWarning
from tests.faults.server import is_mariadb
from tests.transactions import rows
from tests.transactions.reconnecting import options
from tests.transactions.world import check_connections_are_clean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.transactions.world import World

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


@contextlib.contextmanager
def written_elsewhere(alias: str, name: str) -> Iterator[Callable[[], None]]:
    """Another connection, which writes the row when told."""
    writer = connections[alias].copy()
    writer.ensure_connection()

    def write() -> None:
        with writer.cursor() as cursor:
            cursor.execute("INSERT INTO distlock_written VALUES (%s)", [name])

    try:
        yield write
    finally:
        writer.close()


@pytest.mark.parametrize("level", STALE)
def test_r13_stale_read_under_the_lock_is_shown_and_warned_of(postgres: World, level: str) -> None:
    """The fault: the lock is the first statement, the holder commits before it gives the lock away, and what it wrote
    is not seen. With the lock around the transaction it is."""
    world = postgres
    with written_elsewhere("postgres", world.name) as write:
        with warned(world.name, level, "postgres"), transaction.atomic("postgres"):
            set_level("postgres", level)
            lease = world.lock().acquire()
            write()
            lease.ensure_held()
            assert world.written() == 0, "the snapshot is the one of the lock's own statement"
        with silent(), world.lock(), transaction.atomic("postgres"):
            set_level("postgres", level)
            assert world.written() == 1


@pytest.mark.parametrize("face", ["with", "acquire", "decorator", "try_acquire", "entered again"])
def test_r13_warning_points_at_the_callers_line(postgres: World, face: str) -> None:
    lock = postgres.lock()

    def take() -> None:
        if face == "with":
            with lock:
                pass
        elif face == "acquire":
            lock.acquire(timeout=None)
        elif face == "try_acquire":
            lock.try_acquire(timeout=10)
        elif face == "decorator":
            lock(abs)(1)
        else:
            with lock, lock:
                pass

    with warned(postgres.name, "REPEATABLE READ", "postgres"), transaction.atomic("postgres"):
        set_level("postgres", "REPEATABLE READ")
        take()


def test_r13_read_committed_is_silent(world: World) -> None:
    with silent():
        with transaction.atomic(world.alias), world.lock():
            world.written()
        with world.lock():
            pass


def inside(stack: contextlib.ExitStack, using: str) -> None:
    """A transaction on PostgreSQL around a lock that lives elsewhere: a lease, or a session lock because two databases
    are in a transaction."""
    stack.enter_context(transaction.atomic("postgres"))
    if using == "postgres":
        stack.enter_context(transaction.atomic("default"))


@pytest.mark.parametrize(
    ("using", "by"),
    [("leasetable_postgres", "settings"), ("postgres", "settings"), ("postgres", "hand"), ("memory", "hand")],
)
def test_r13_locks_that_live_elsewhere_warn_too(make_world: Any, using: str, by: str) -> None:
    world = make_world(using, "postgres")
    with contextlib.ExitStack() as stack:
        if by == "settings":
            stack.enter_context(options("postgres", isolation_level=IsolationLevel.SERIALIZABLE))
        stack.enter_context(warned(world.name, "SERIALIZABLE", "postgres"))
        inside(stack, using)
        if by == "hand":
            set_level("postgres", "SERIALIZABLE")
        world.lock().acquire()


@pytest.mark.parametrize("using", ["postgres", "memory"])
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
    with silent(), transaction.atomic("postgres"), CaptureQueriesContext(connections["postgres"]) as queries:
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
        assert world.written() == 0


def test_r13_task_is_warned_of_the_level_of_the_settings(postgres: World) -> None:
    """Its transaction is that of a thread that waits for it, whose connection is not for others."""

    async def work() -> None:
        await postgres.lock().aacquire()

    with options("postgres", isolation_level=IsolationLevel.SERIALIZABLE):
        with warnings.catch_warnings(record=True) as caught, transaction.atomic("postgres"):
            warnings.simplefilter("always")
            postgres.written()
            async_to_sync(work)()
        assert [type(warning.message) for warning in caught] == [StaleSnapshotWarning]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_r13_mariadb(make_world: Any, level: str) -> None:
    """The fault there: once the transaction has read, it reads on from that snapshot, lock or no lock."""
    world = make_world("mysql", "mariadb")
    with written_elsewhere("mariadb", world.name) as write, options("mariadb", isolation_level=level):
        with warned(world.name, level.upper(), "mariadb"), transaction.atomic("mariadb"):
            rows.count("mariadb", world.name + "-other")
            lease = world.lock().acquire()
            if level == "repeatable read":
                write()
                assert world.written() == 0
            lease.ensure_held()
        with silent(), world.lock(), transaction.atomic("mariadb"):
            assert world.written() == (level == "repeatable read")


def isolation_variable() -> str:
    """MySQL 8 knows the old name no more, MariaDB before 11.1 the new one not yet."""
    return "tx_isolation" if is_mariadb() else "transaction_isolation"


def test_r13_mariadb_with_the_level_of_the_server(make_world: Any) -> None:
    """``isolation_level: None`` leaves it to the server, whose default is REPEATABLE READ."""
    world = make_world("mysql", "mariadb")
    with options("mariadb", isolation_level=None):
        with connections["mariadb"].cursor() as cursor:
            cursor.execute(f"SELECT @@{isolation_variable()}")
            assert cursor.fetchone() == ("REPEATABLE-READ",)
        with warned(world.name, "REPEATABLE READ", "mariadb"), transaction.atomic("mariadb"):
            world.written()
            world.lock().acquire()
        with (
            CaptureQueriesContext(connections["mariadb"]) as queries,
            transaction.atomic("mariadb"),
            warned(world.name, "REPEATABLE READ", "mariadb"),
        ):
            world.lock().acquire()
        assert not [query for query in queries if "isolation" in query["sql"]], "asked once a connection"


def test_r13_mariadb_does_not_tell_a_level_that_sql_has_set(make_world: Any) -> None:
    """What holds for one transaction is in no variable of the session: such a lock is not warned of, and the
    documentation says so."""
    world = make_world("mysql", "mariadb")
    with transaction.atomic("mariadb"):
        set_level("mariadb", "SERIALIZABLE")
        world.written()
        with connections["mariadb"].cursor() as cursor:
            cursor.execute(f"SELECT @@{isolation_variable()}")
            assert cursor.fetchone() == ("READ-COMMITTED",)
        with silent():
            world.lock().acquire()


def test_r13_warning_as_an_error_leaves_nothing_held(postgres: World) -> None:
    """Test suites turn warnings into errors; the attempt has failed then (R7)."""
    with transaction.atomic("postgres"):
        set_level("postgres", "REPEATABLE READ")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(StaleSnapshotWarning):
                postgres.lock().acquire()
    assert not postgres.is_out()
    check_connections_are_clean()
