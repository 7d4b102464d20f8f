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
from tests.transactions import rows
from tests.transactions.world import World, check_connections_are_clean, in_thread, options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


RR, SERIALIZABLE = "REPEATABLE READ", "SERIALIZABLE"


def set_level(alias: str, level: str) -> None:
    rows.ask(alias, f"SET TRANSACTION ISOLATION LEVEL {level}")


def settings_level(alias: str, level: str | None) -> Any:
    """``isolation_level`` in the OPTIONS. None leaves it to the server, which in MariaDB's case means RR."""
    return options(
        alias,
        isolation_level=level and (level.lower() if alias == "mariadb" else IsolationLevel[level.replace(" ", "_")]),
    )


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
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize(("using", "alias"), [("postgres", "postgres"), ("mysql", "mariadb")])
@pytest.mark.parametrize("level", [RR, SERIALIZABLE])
def test_r13_stale_read_under_the_lock_is_shown_and_warned_of(
    make_world: Any, using: str, alias: str, level: str
) -> None:
    """The fault: the holder commits before it gives the lock away, and what it wrote is not seen. With the lock around
    the transaction it is. PostgreSQL's snapshot is that of the lock's own statement, MariaDB's that of the first read,
    and there a SERIALIZABLE one has the writer wait."""
    world: World = make_world(using, alias)
    seen = (alias, level) != ("mariadb", SERIALIZABLE)
    with settings_level(alias, level):
        with warned(world.name, level, alias), transaction.atomic(alias):
            rows.count(alias, world.name + "-other")
            lease = world.lock().acquire()
            if seen:
                in_thread(world.write)
                assert world.written() == 0
            lease.ensure_held()
        with silent(), world.lock(), transaction.atomic(alias):
            assert world.written() == seen


@pytest.mark.parametrize(
    ("using", "alias", "settings", "by_hand", "told"),
    [
        pytest.param("postgres", "postgres", "", RR, RR, id="own"),
        pytest.param("postgres", "postgres", SERIALIZABLE, "READ COMMITTED", "", id="own-lowered"),
        pytest.param("postgres", "postgres", "", "", "", id="own-default"),
        pytest.param("two", "postgres", SERIALIZABLE, "", SERIALIZABLE, id="session"),
        pytest.param("leasetable_postgres", "postgres", SERIALIZABLE, "", SERIALIZABLE, id="lease"),
        pytest.param("leasetable", "default", "", "", "", id="lease-sqlite"),
        # known only by asking, as the documentation says
        pytest.param("memory", "postgres", "", SERIALIZABLE, "", id="memory-by-sql"),
        pytest.param("mysql", "mariadb", None, "", "", id="mysql-of-the-server"),
        pytest.param("mysql", "mariadb", "", SERIALIZABLE, "", id="mysql-by-sql"),
    ],
)
def test_r13_which_locks_warn(
    make_world: Any, using: str, alias: str, settings: str | None, by_hand: str, told: str
) -> None:
    """Also those that live elsewhere. "two": two databases are in a transaction, so the lock has a session."""
    world = make_world("postgres" if using == "two" else using, alias)
    with contextlib.ExitStack() as stack:
        if settings != "":
            stack.enter_context(settings_level(alias, settings))
        stack.enter_context(warned(world.name, told, alias) if told else silent())
        stack.enter_context(transaction.atomic(alias))
        if using == "two":
            stack.enter_context(transaction.atomic("default"))
        if by_hand:
            set_level(alias, by_hand)
        world.lock().acquire()


def enter_twice(lock: Any) -> None:
    with lock, lock:
        pass


@pytest.mark.parametrize(
    "take",
    [enter_twice, lambda lock: lock.acquire(timeout=None), lambda lock: lock(abs)(1)],
    ids=["with", "acquire", "@"],
)
def test_r13_warning_points_at_the_callers_line(postgres: World, take: Callable[[Any], object]) -> None:
    with warned(postgres.name, RR, "postgres"), transaction.atomic("postgres"):
        set_level("postgres", RR)
        take(postgres.lock())


def test_r13_nothing_is_sent_to_learn_the_level(make_world: Any) -> None:
    """PostgreSQL refuses SET TRANSACTION after the first snapshot, and an aborted transaction answers nothing."""
    world = make_world("memory", "postgres")
    with silent(), transaction.atomic("postgres"), CaptureQueriesContext(connections["postgres"]) as queries:
        world.lock().acquire()
        set_level("postgres", SERIALIZABLE)
    assert len(queries) == 1
    with settings_level("postgres", SERIALIZABLE):
        with warned(world.name, SERIALIZABLE, "postgres"), transaction.atomic("postgres"):
            with pytest.raises(DatabaseError):
                set_level("postgres", "NO SUCH LEVEL")
            world.lock().acquire()
            transaction.set_rollback(True, using="postgres")
        assert world.written() == 0


def test_r13_task_is_warned_of_the_level_of_the_settings(postgres: World) -> None:
    """Its transaction is that of a thread that waits for it, whose connection is not for others."""
    with settings_level("postgres", SERIALIZABLE), transaction.atomic("postgres"):
        postgres.written()
        with pytest.warns(StaleSnapshotWarning) as caught:
            async_to_sync(postgres.lock().aacquire)()
        assert len(caught) == 1


def test_r13_warning_as_an_error_leaves_nothing_held(postgres: World) -> None:
    """Test suites turn warnings into errors; the attempt has failed then (R7)."""
    with transaction.atomic("postgres"):
        set_level("postgres", RR)
        with silent(), pytest.raises(StaleSnapshotWarning):
            postgres.lock().acquire()
    assert not postgres.is_out()
    check_connections_are_clean()
