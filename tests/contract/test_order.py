"""R4: waiters of several processes are served in order of arrival; a dead one is passed over. For shared locks (R1):
readers together, writers alone and not overtaken."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from django_distlock import advisory_lock
from tests.conftest import eventually
from tests.contract.actors import PATIENCE, Actor, Face
from tests.contract.conftest import across_processes, both_faces, sharing, those
from tests.contract.rivals import Rival, RivalError, serve
from tests.contract.watching import asking_here, somebody_waits, waiting_at_the_engine, waiting_here
from tests.support.processes import Child

fifo = those(lambda entry: entry.processes and entry.fifo)


def queue(using: str, name: str, length: int) -> None:
    eventually(lambda: waiting_at_the_engine(using, name) >= length, f"not {length} wait at the engine")


@fifo
@both_faces
def test_r4_processes_are_served_in_order(me: Actor, rival: Any, second_rival: Any, using: str, name: str) -> None:
    held = rival.acquire(using, name)
    first = second_rival.start_acquire(using, name)
    queue(using, name, 1)
    second = me.start(advisory_lock(name, using=using), "acquire", timeout=PATIENCE)
    queue(using, name, 2)
    third = rival.start_acquire(using, name)  # in the queue of its own process behind nobody, at the engine behind us
    queue(using, name, 2)
    rival.release(held)
    number = second_rival.result(first)
    assert not second.done()
    second_rival.release(number)
    me.release(second.result(PATIENCE))
    rival.release(rival.result(third))


@fifo
def test_r4_who_does_not_wait_does_not_overtake(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    """With a waiter in another process, an attempt with timeout=0 fails also in the moment of the release."""
    lock = advisory_lock(name, using=using)
    held = me.acquire(lock)
    waiting = rival.start_acquire(using, name)
    queue(using, name, 1)
    assert other.try_acquire(lock) is None
    me.release(held)
    assert other.try_acquire(lock) is None
    theirs = rival.result(waiting)
    assert other.try_acquire(lock) is None
    rival.release(theirs)


@pytest.mark.tier2
@across_processes
def test_r4_a_dead_waiter_is_passed_over_and_a_dead_holder_is_followed(
    me: Actor, using: str, name: str, backend: Any
) -> None:
    """The holder's lock is free at once where a session holds it, at the end of its lease where a TTL does."""
    with Child(serve) as holder, Child(serve) as waiter:
        if backend.supports_ttl:
            Rival(holder).acquire(using, name, ttl=1.5)
        else:
            Rival(holder).acquire(using, name)
        Rival(waiter).start_acquire(using, name)
        queue(using, name, 1)
        waiting = me.start(advisory_lock(name, using=using), "acquire", timeout=PATIENCE)
        queue(using, name, 2)
        for child in (waiter, holder):
            child.signal(signal.SIGKILL)
            child.process.wait(PATIENCE)
        me.release(waiting.result(10))


@pytest.mark.tier2
@across_processes
def test_r4_whoever_waits_gets_in_however_many_wait(
    me: Actor, rival: Any, second_rival: Any, using: str, name: str
) -> None:
    """40 names are held elsewhere and waited for here, more than a process has connections to wait on; one more goes to
    and fro between other processes."""
    crowd, wanted = [f"{name} {number}" for number in range(40)], f"{name} wanted"
    held = [rival.acquire(using, each) for each in crowd]
    rivals = [(somebody, somebody.start("compete", using, wanted)) for somebody in (rival, second_rival, second_rival)]
    faces = [Face("sync"), Face("async")]
    try:
        actors = [faces[number % 2].actor() for number in range(len(crowd))]
        waiting = [
            actor.start(advisory_lock(each, using=using), "acquire", timeout=60)
            for actor, each in zip(actors, crowd, strict=True)
        ]
        eventually(lambda: sum(asking_here(each) + waiting_here(each) for each in crowd) == len(crowd), "not all wait")
        me.release(me.acquire(advisory_lock(wanted, using=using), timeout=PATIENCE))
        assert not any(future.done() for future in waiting)
        for number in held:
            rival.release(number)
        for actor, future in zip(actors, waiting, strict=True):
            actor.release(future.result(60))
    finally:
        for face in faces:
            face.close()
    for somebody, token in rivals:
        somebody.call("desist")
        somebody.result(token)


def recipes(using: str, name: str) -> tuple[Any, Any]:
    """For a reader and for a writer."""
    return advisory_lock(name, using=using, shared=True), advisory_lock(name, using=using)


@both_faces
@sharing
def test_r1_readers_together_writers_alone(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    reader, writer = recipes(using, name)
    readers = [me.acquire(reader), other.acquire(reader, timeout=0)]
    assert [lease.shared for lease in readers] == [True, True]
    me.release(readers[0])
    with pytest.raises(RivalError, match="LockNotAcquired"):  # one session may have held for both
        rival.acquire(using, name, timeout=0)
    away = rival.acquire(using, name, timeout=0, shared=True)
    other.release(readers[1])
    assert me.try_acquire(writer) is None
    rival.release(away)
    lease = me.acquire(writer, timeout=0)
    assert other.try_acquire(reader) is None
    me.release(lease)


@sharing
def test_r4_a_writer_that_waits_is_not_overtaken_by_readers(me: Actor, face: Face, using: str, name: str) -> None:
    """And readers that wait for it come in together."""
    reader, writer = recipes(using, name)
    first = me.acquire(reader)
    other, *readers = face.actors(4)
    writing = other.start(writer, "acquire", timeout=PATIENCE)
    somebody_waits(name)
    assert readers[0].try_acquire(reader) is None
    reading = [actor.start(reader, "acquire", timeout=PATIENCE) for actor in readers]
    somebody_waits(name, 4)
    me.release(first)
    lease = writing.result(PATIENCE)
    assert not any(future.done() for future in reading)
    other.release(lease)
    leases = [future.result(PATIENCE) for future in reading]
    assert all(each.held for each in leases)
    for actor, each in zip(readers, leases, strict=True):
        actor.release(each)


@sharing
def test_r4_nor_is_a_writer_of_another_process(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    """The queue of this process knows nothing of it: the engine itself refuses the reader."""
    reader, _ = recipes(using, name)
    first = me.acquire(reader)
    writing = rival.start_acquire(using, name)
    eventually(lambda: waiting_at_the_engine(using, name) + waiting_here(name) > 0, "the writer does not wait")
    assert other.try_acquire(reader) is None
    me.release(first)
    rival.release(rival.result(writing))
