"""Shared locks: readers together, writers alone; refused where the engine cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import UnsupportedOperation, advisory_lock, lock_all
from django_distlock.manager.registry import registry
from tests.conformance.actors import PATIENCE
from tests.conformance.rivals import RivalError
from tests.conformance.watching import asking_here, waiting_at_the_engine, waiting_here
from tests.conftest import eventually
from tests.matrix import MATRIX

if TYPE_CHECKING:
    from tests.conformance.actors import Actor, Face

SHARING = ("memory", "postgres", "redis", "zookeeper")
sharing = pytest.mark.parametrize(
    "entry", [entry for entry in MATRIX if entry.using in SHARING], ids=lambda entry: entry.using, indirect=True
)


def test_the_selection_above_is_that_of_the_flags(databases: None) -> None:
    assert tuple(each.using for each in MATRIX if registry.entry(each.using).backend.supports_shared) == SHARING


def test_shared_is_refused_where_the_engine_cannot(me: Actor, using: str, name: str, backend: Any) -> None:
    """Never silently exclusive, never silently not held; for each face."""
    if backend.supports_shared:
        return
    for recipe in (
        advisory_lock(name, using=using, shared=True),
        lock_all([name], using=using, shared=True),
        lock_all([advisory_lock(name, using=using, shared=True)]),
    ):
        for attempt in (me.acquire, me.try_acquire, me.enter):
            with pytest.raises(UnsupportedOperation, match=rf"of alias '{using}' cannot share a lock\."):
                attempt(recipe)
    me.release(me.acquire(advisory_lock(name, using=using), timeout=0))


@sharing
def test_readers_together_writers_alone(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    reader, writer = advisory_lock(name, using=using, shared=True), advisory_lock(name, using=using)
    readers = [me.acquire(reader), other.acquire(reader, timeout=0)]
    assert [lease.shared for lease in readers] == [True, True]
    away = rival.acquire(using, name, timeout=0, shared=True)
    third = other.acquire(reader)
    with pytest.raises(RivalError, match="LockNotAcquired"):
        rival.acquire(using, name, timeout=0)
    other.release(third)
    me.release(readers[0])
    other.release(readers[1])
    assert me.try_acquire(writer) is None
    rival.release(away)
    lease = me.acquire(writer, timeout=1)
    assert other.try_acquire(reader) is None
    me.release(lease)


@sharing
def test_a_reader_that_leaves_takes_no_other_along(face: Face, rival: Any, using: str, name: str) -> None:
    """Also where one session holds for several readers."""
    reader, writer = advisory_lock(name, using=using, shared=True), advisory_lock(name, using=using)
    actors = face.actors(4)
    leases = [actor.acquire(reader, timeout=0) for actor in actors]
    last = face.actor()
    for actor, lease in zip(actors, leases, strict=True):
        assert last.try_acquire(writer) is None
        with pytest.raises(RivalError, match="LockNotAcquired"):
            rival.acquire(using, name, timeout=0)
        actor.release(lease)
    rival.release(rival.acquire(using, name, timeout=0))


@sharing
def test_r4_a_writer_that_waits_is_not_overtaken_by_readers(me: Actor, face: Face, using: str, name: str) -> None:
    reader, writer = advisory_lock(name, using=using, shared=True), advisory_lock(name, using=using)
    order: list[str] = []
    first = me.acquire(reader)
    wants_to_write, wants_to_read = face.actors(2)
    writing = wants_to_write.start(writer, "acquire", timeout=PATIENCE)
    eventually(lambda: asking_here(name) + waiting_here(name) == 1, "the writer does not wait")
    assert wants_to_read.try_acquire(reader) is None
    reading = wants_to_read.start(reader, "acquire", timeout=PATIENCE)
    writing.add_done_callback(lambda future: order.append("writer"))
    reading.add_done_callback(lambda future: order.append("reader"))
    eventually(lambda: asking_here(name) + waiting_here(name) == 2, "the reader does not wait")
    me.release(first)
    wants_to_write.release(writing.result(PATIENCE))
    wants_to_read.release(reading.result(PATIENCE))
    assert order == ["writer", "reader"]


@sharing
def test_r4_nor_is_a_writer_of_another_process(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    """The queue of this process knows nothing of it: the engine itself refuses the reader."""
    reader = advisory_lock(name, using=using, shared=True)
    first = me.acquire(reader)
    writing = rival.start_acquire(using, name)
    eventually(lambda: waiting_at_the_engine(using, name) + waiting_here(name) > 0, "the writer does not wait")
    assert other.try_acquire(reader) is None
    me.release(first)
    rival.release(rival.result(writing))


@sharing
def test_r4_readers_that_wait_for_a_writer_come_in_together(me: Actor, face: Face, using: str, name: str) -> None:
    reader, writer = advisory_lock(name, using=using, shared=True), advisory_lock(name, using=using)
    lease = me.acquire(writer)
    actors = face.actors(3)
    reading = [actor.start(reader, "acquire", timeout=PATIENCE) for actor in actors]
    eventually(lambda: waiting_here(name) == 3, "the readers do not wait")
    me.release(lease)
    leases = [future.result(PATIENCE) for future in reading]
    assert all(each.held for each in leases)
    for actor, each in zip(actors, leases, strict=True):
        actor.release(each)


@sharing
def test_reentry_of_a_reader_with_a_writer_waiting(me: Actor, other: Actor, using: str, name: str) -> None:
    """R2 goes before the queue: else the reader would wait for the writer, who waits for it."""
    reader, writer = advisory_lock(name, using=using, shared=True), advisory_lock(name, using=using)
    outer = me.acquire(reader)
    writing = other.start(writer, "acquire", timeout=PATIENCE)
    eventually(lambda: asking_here(name) + waiting_here(name) == 1, "the writer does not wait")
    me.release(me.acquire(reader, timeout=0))
    me.release(outer)
    other.release(writing.result(PATIENCE))
