"""The ways in which a transaction can end. Each takes a lock inside it, writes, and calls ``world.still_inside()`` once
the with-block of the lock is over. It returns how many rows are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.db import Error, IntegrityError, close_old_connections, transaction

from tests.transactions import rows
from tests.transactions.world import World, swallow

Way = Callable[[World], int]


class Boom(Exception):
    pass


def work(world: World) -> None:
    with world.lock() as lease:
        world.write()
        assert lease.held
    world.still_inside()


def commit(world: World) -> int:
    with transaction.atomic(world.alias):
        work(world)
    return 1


def exception(world: World) -> int:
    with swallow(Boom), transaction.atomic(world.alias):
        work(world)
        raise Boom
    return 0


def exception_under_the_lock(world: World) -> int:
    with swallow(Boom), transaction.atomic(world.alias):
        try:
            with world.lock():
                world.write()
                raise Boom
        finally:
            world.still_inside()
    return 0


def keyboard_interrupt(world: World) -> int:
    with swallow(KeyboardInterrupt), transaction.atomic(world.alias):
        work(world)
        raise KeyboardInterrupt
    return 0


def generator_exit(world: World) -> int:
    def generator() -> Iterator[None]:
        with transaction.atomic(world.alias):
            work(world)
            yield

    running: Any = generator()
    next(running)
    running.close()
    return 0


def needs_rollback(world: World) -> int:
    """An error that was caught too deep: the outermost block rolls back without an exception."""
    with transaction.atomic(world.alias):
        with swallow(Boom), transaction.atomic(world.alias, savepoint=False):
            work(world)
            raise Boom
        assert world.connection.needs_rollback
    return 0


def set_rollback(world: World) -> int:
    with transaction.atomic(world.alias):
        work(world)
        transaction.set_rollback(True, using=world.alias)
    return 0


def failed_commit(world: World) -> int:
    with swallow(IntegrityError), transaction.atomic(world.alias):
        work(world)
        rows.break_constraint(world.alias)
    return 0


def close(world: World) -> int:
    """Closed inside its block: the server rolls back at once, Django when the block ends."""
    with transaction.atomic(world.alias):
        work(world)
        world.connection.close()
        world.ended()
    return 0


def close_old(world: World) -> int:
    """``close_old_connections()`` closes a connection that has left autocommit."""
    with transaction.atomic(world.alias):
        work(world)
        close_old_connections()
        world.ended()
        assert world.connection.closed_in_transaction
    return 0


def killed(world: World) -> int:
    with swallow(Error), transaction.atomic(world.alias):
        work(world)
        _kill(world)
    return 0


def killed_with_an_exception(world: World) -> int:
    with swallow(Boom), transaction.atomic(world.alias):
        work(world)
        _kill(world)
        raise Boom
    return 0


def _kill(world: World) -> None:
    if world.connection.vendor == "sqlite":
        world.connection.connection.close()  # no server: the driver's connection goes from under Django's
    else:
        rows.kill(world.alias, rows.server_id(world.alias))
    if world.scoped:
        world.ended()  # the lock died with its transaction


def nested(world: World) -> int:
    with transaction.atomic(world.alias):
        with transaction.atomic(world.alias), transaction.atomic(world.alias):
            work(world)
        rows.count(world.alias, world.name)
    return 1


def nested_without_savepoint(world: World) -> int:
    with transaction.atomic(world.alias), transaction.atomic(world.alias, savepoint=False):
        work(world)
    return 1


def durable(world: World) -> int:
    with transaction.atomic(world.alias, durable=True):
        work(world)
    return 1


def other_savepoint_rolled_back(world: World) -> int:
    with transaction.atomic(world.alias):
        work(world)
        with swallow(Boom), transaction.atomic(world.alias):
            raise Boom
        rows.count(world.alias, world.name)
    return 1


def by_hand_commit(world: World) -> int:
    transaction.set_autocommit(False, using=world.alias)
    try:
        work(world)
        transaction.commit(using=world.alias)
        world.check_rival_came_in(1)
    finally:
        transaction.set_autocommit(True, using=world.alias)
    return 1


def by_hand_rollback(world: World) -> int:
    transaction.set_autocommit(False, using=world.alias)
    try:
        work(world)
        transaction.rollback(using=world.alias)
        world.check_rival_came_in(0)
    finally:
        transaction.set_autocommit(True, using=world.alias)
    return 0


def by_hand_atomic_inside(world: World) -> int:
    """With autocommit off, atomic() is a savepoint and ends nothing."""
    transaction.set_autocommit(False, using=world.alias)
    try:
        with transaction.atomic(world.alias):
            work(world)
        rows.count(world.alias, world.name)
        transaction.commit(using=world.alias)
        world.check_rival_came_in(1)
    finally:
        transaction.set_autocommit(True, using=world.alias)
    return 1


def by_hand_close(world: World) -> int:
    transaction.set_autocommit(False, using=world.alias)
    work(world)
    world.connection.close()
    world.ended()
    return 0


def autocommit_on(world: World) -> int:
    """Autocommit switched on again with the transaction still open: MySQL commits, so does Python's sqlite3, and
    psycopg refuses."""
    transaction.set_autocommit(False, using=world.alias)
    work(world)
    if world.connection.vendor == "postgresql":
        with swallow(Error):
            transaction.set_autocommit(True, using=world.alias)
        transaction.commit(using=world.alias)
        world.ended()
    transaction.set_autocommit(True, using=world.alias)
    return 1


def two_databases(world: World) -> int:
    """The other database's transaction was open too, and ends first."""
    other = "default" if world.alias != "default" else "mariadb"
    with transaction.atomic(world.alias):
        with transaction.atomic(other), world.lock():
            world.write()
            rows.write(other, world.name)
        world.still_inside()
    return 1


def two_databases_crosswise(world: World) -> int:
    """The lock's own transaction ends first; the other one still counts."""
    other = "default" if world.alias != "default" else "mariadb"
    with transaction.atomic(other):
        with transaction.atomic(world.alias), world.lock():
            world.write()
            rows.write(other, world.name)
        world.still_inside()
    assert rows.count(other, world.name) == 1
    return 1


WAYS: tuple[Way, ...] = (
    commit,
    exception,
    exception_under_the_lock,
    keyboard_interrupt,
    generator_exit,
    needs_rollback,
    set_rollback,
    failed_commit,
    close,
    close_old,
    killed,
    killed_with_an_exception,
    nested,
    nested_without_savepoint,
    durable,
    other_savepoint_rolled_back,
    by_hand_commit,
    by_hand_rollback,
    by_hand_atomic_inside,
    by_hand_close,
    autocommit_on,
    two_databases,
    two_databases_crosswise,
)
