"""The ways in which a transaction can end. Each takes a lock inside it, writes, and calls ``world.still_inside()`` once
the with-block of the lock is over. It returns how many rows are committed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import Error, IntegrityError, close_old_connections, connections, transaction

from django_distlock import Lease, LockNotHeld
from tests.transactions import rows
from tests.transactions.world import World, check_connections_are_clean, in_thread, swallow

Way = Callable[[World], int]


class Boom(Exception):
    pass


def work(world: World) -> None:
    with world.lock() as lease:
        world.write()
        assert lease.held
    world.still_inside()


# blocks inside each other, and all of them end well


def blocks(world: World, outermost: dict[str, bool], *inner: dict[str, bool]) -> int:
    with transaction.atomic(world.alias, **outermost):
        with contextlib.ExitStack() as stack:
            for options in inner:
                stack.enter_context(transaction.atomic(world.alias, **options))
            work(world)
        world.written()
    return 1


# what happens in a block behind the lock


def fail(world: World) -> None:
    raise Boom


def interrupt(world: World) -> None:
    raise KeyboardInterrupt


def set_rollback(world: World) -> None:
    transaction.set_rollback(True, using=world.alias)


def close(world: World) -> None:
    """Closed inside its block: the server rolls back at once, Django when the block ends."""
    world.connection.close()
    world.ended()


def close_old(world: World) -> None:
    """``close_old_connections()`` closes a connection that has left autocommit."""
    close_old_connections()
    world.ended()
    assert world.connection.closed_in_transaction


def kill(world: World) -> None:
    if world.connection.vendor == "sqlite":
        world.connection.connection.close()  # no server: the driver's connection goes from under Django's
    else:
        rows.kill(world.alias, rows.server_id(world.alias))
    if world.scoped:
        world.ended()  # the lock died with its transaction


def kill_and_fail(world: World) -> None:
    kill(world)
    raise Boom


def roll_back_a_savepoint(world: World) -> None:
    with swallow(Boom), transaction.atomic(world.alias):
        raise Boom
    world.written()


# what comes out, what happens, and the rows that stay
ENDS: dict[str, tuple[type[BaseException] | None, Callable[[World], None], int]] = {
    "exception": (Boom, fail, 0),
    "keyboard_interrupt": (KeyboardInterrupt, interrupt, 0),
    "set_rollback": (None, set_rollback, 0),
    "failed_commit": (IntegrityError, lambda world: rows.break_constraint(world.alias), 0),
    "close": (None, close, 0),
    "close_old": (None, close_old, 0),
    "killed": (Error, kill, 0),
    "killed_with_an_exception": (Boom, kill_and_fail, 0),
    "other_savepoint_rolled_back": (None, roll_back_a_savepoint, 1),
}


def ending(world: World, how: str) -> int:
    error, end, committed = ENDS[how]
    with swallow(error) if error else contextlib.nullcontext(), transaction.atomic(world.alias):
        work(world)
        end(world)
    return committed


def exception_under_the_lock(world: World) -> int:
    with swallow(Boom), transaction.atomic(world.alias):
        try:
            with world.lock():
                world.write()
                raise Boom
        finally:
            world.still_inside()
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


# without autocommit


def by_hand(world: World, end: Callable[..., None], committed: int, *, atomic: bool = False) -> int:
    """``atomic``: with autocommit off, atomic() is a savepoint and ends nothing."""
    transaction.set_autocommit(False, using=world.alias)
    try:
        with transaction.atomic(world.alias) if atomic else contextlib.nullcontext():
            work(world)
        world.written()
        end(using=world.alias)
        world.check_rival_came_in(committed)
    finally:
        transaction.set_autocommit(True, using=world.alias)
    return committed


def by_hand_close(world: World) -> int:
    transaction.set_autocommit(False, using=world.alias)
    work(world)
    close(world)
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


def two_databases(world: World, *, own_first: bool) -> int:
    """The transaction of another database is open too; whichever ends last counts."""
    other = "default" if world.alias != "default" else "mariadb"
    outer, inner = (other, world.alias) if own_first else (world.alias, other)
    with transaction.atomic(outer):
        with transaction.atomic(inner), world.lock():
            world.write()
            rows.write(other, world.name)
        world.still_inside()
    assert rows.count(other, world.name) == 1
    return 1


# leases, and other threads and tasks


def release_in_a_thread(lease: Lease) -> None:
    in_thread(lease.release)


def release_in_a_task(lease: Lease) -> None:
    in_thread(lambda: asyncio.run(lease.arelease()))


def lease_from_outside(world: World, release: Callable[[Lease], None], *, closed: bool = False) -> int:
    """Acquired before the transaction and released inside it."""
    lease = world.lock().acquire()
    with transaction.atomic(world.alias):
        world.write()
        release(lease)
        assert not lease.held
        world.still_inside()
        if closed:
            close(world)
    return int(not closed)


def never_released(world: World) -> int:
    with transaction.atomic(world.alias):
        with transaction.atomic(world.alias):
            lease = world.lock().acquire()
            world.write()
        assert lease.held
        world.still_inside()
    with swallow(LockNotHeld):
        lease.ensure_held()
    lease.release()
    return 1


def around(world: World, release: Callable[[Lease], None]) -> int:
    """R10: given back by its own exit, or before that."""
    with world.lock() as lease:
        with transaction.atomic(world.alias):
            world.write()
        world.still_inside()
        release(lease)
    return 1


async def locked_write(world: World) -> None:
    async with world.lock() as lease:
        await sync_to_async(rows.write)(world.alias, world.name)
        assert lease.held


async def other_lock(world: World) -> None:
    async with world.lock("-other"):
        pass


def async_inside(world: World, *, asgi: bool) -> int:
    """``async_to_sync`` inside ``atomic()``: its ORM calls run in that transaction. Django keeps other connections for
    async code of the same thread; what was looked up there before holds only there. "asgi": in a sync view under it."""

    def inside() -> None:
        world.written()  # connected before, so that nothing is looked up anew later
        if not asgi:
            asyncio.run(other_lock(world))
        with transaction.atomic(world.alias):
            async_to_sync(locked_write)(world)
            assert world.written() == 1, "written on another connection"
            world.still_inside()
        check_connections_are_clean()
        connections.close_all()

    in_thread((lambda: asyncio.run(sync_to_async(inside)())) if asgi else inside)
    return 1


def async_in_a_request(world: World) -> int:
    """A transaction of async code, on the thread where asgiref runs the ORM calls of an ASGI request."""

    async def request() -> None:
        async with ThreadSensitiveContext():
            block = transaction.atomic(world.alias)
            await sync_to_async(block.__enter__)()
            await locked_write(world)
            await sync_to_async(world.still_inside)()
            await sync_to_async(block.__exit__)(None, None, None)
            await sync_to_async(check_connections_are_clean)()
            await sync_to_async(connections.close_all)()

    in_thread(lambda: asyncio.run(request()))
    return 1


def entered_again(world: World, by: str) -> int:
    """From async code of the same context, also by another thread that cannot use the connection of the first."""

    def again() -> None:
        with world.lock().acquire(timeout=0) as lease:
            assert lease.held
        if by == "thread":
            connections.close_all()

    async def asynchronous() -> None:
        if by == "task":
            async with await world.lock().aacquire(timeout=0) as lease:
                assert lease.held
        else:
            await sync_to_async(again, thread_sensitive=by == "caller")()

    def inside() -> None:
        with transaction.atomic(world.alias):
            with world.lock():
                world.write()
            async_to_sync(asynchronous)()
            world.still_inside()
        check_connections_are_clean()

    in_thread(inside)
    return 1


commit: Way = partial(blocks, outermost={})
WAYS: dict[str, Way] = {
    "commit": commit,
    "nested": lambda world: blocks(world, {}, {}, {}),
    "nested_without_savepoint": lambda world: blocks(world, {}, {"savepoint": False}),
    "durable": lambda world: blocks(world, {"durable": True}),
    **{how: partial(ending, how=how) for how in ENDS},
    "exception_under_the_lock": exception_under_the_lock,
    "generator_exit": generator_exit,
    "needs_rollback": needs_rollback,
    "by_hand_commit": lambda world: by_hand(world, transaction.commit, 1),
    "by_hand_rollback": lambda world: by_hand(world, transaction.rollback, 0),
    "by_hand_atomic_inside": lambda world: by_hand(world, transaction.commit, 1, atomic=True),
    "by_hand_close": by_hand_close,
    "autocommit_on": autocommit_on,
    "lease_from_outside": partial(lease_from_outside, release=Lease.release),
    "lease_from_outside_and_close": partial(lease_from_outside, release=Lease.release, closed=True),
    "released_by_another_thread": partial(lease_from_outside, release=release_in_a_thread),
    "released_by_another_task": partial(lease_from_outside, release=release_in_a_task),
    "never_released": never_released,
    "around": partial(around, release=lambda lease: None),
    "around_and_another_thread": partial(around, release=release_in_a_thread),
    "async_inside": partial(async_inside, asgi=False),
    "async_inside_a_view": partial(async_inside, asgi=True),
    "async_in_a_request": async_in_a_request,
    **{f"entered_again_by_{by}": partial(entered_again, by=by) for by in ("caller", "thread", "task")},
    "two_databases": partial(two_databases, own_first=False),
    "two_databases_crosswise": partial(two_databases, own_first=True),
}
