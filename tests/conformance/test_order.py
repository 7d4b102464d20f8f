"""R4: waiters are served in order of arrival, in one process and across processes; a dead one is passed over."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockTimeout, advisory_lock, semaphore
from tests.conformance.actors import PATIENCE, Face
from tests.conformance.conftest import across_processes, with_semaphore
from tests.conformance.rivals import Rival, serve
from tests.conformance.watching import waiting_at_the_engine, waiting_here
from tests.conftest import eventually
from tests.matrix import MATRIX
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.conformance.actors import Actor


def test_r4_contexts_of_one_process_are_served_in_order(me: Actor, face: Face, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    serve_in_order(face, name, lock, [me.acquire(lock)])


@with_semaphore
def test_r4_so_are_those_who_wait_for_a_semaphore(me: Actor, face: Face, using: str, name: str) -> None:
    pool = semaphore(name, 2, using=using)
    serve_in_order(face, name, pool, [me.acquire(pool), me.acquire(pool)])


def serve_in_order(face: Face, name: str, lock: Any, held: list[Any]) -> None:
    """Six contexts come to wait, one after the other, and one of the leases ``held`` is given back."""
    order: list[int] = []
    waiting = []
    for number, actor in enumerate(face.actors(6)):
        waiting.append(actor.submit(_in_turn(face, lock, order, number)))
        eventually(lambda expected=number + 1: waiting_here(name) == expected, "the waiter did not arrive")
    held.pop().release()
    for future in waiting:
        future.result(PATIENCE)
    for lease in held:
        lease.release()
    assert order == list(range(6))


def _in_turn(face: Face, lock: Any, order: list[int], number: int) -> Any:
    def thread() -> None:
        with lock:
            order.append(number)

    async def task() -> None:
        async with lock:
            order.append(number)

    return thread if face.kind == "sync" else task


def test_r4_threads_and_tasks_stand_in_one_queue(using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    faces = [Face("sync"), Face("async")]
    try:
        order: list[int] = []
        with lock:
            waiting = []
            for number in range(6):
                face = faces[number % 2]
                waiting.append(face.actor().submit(_in_turn(face, lock, order, number)))
                eventually(lambda expected=number + 1: waiting_here(name) == expected, "the waiter did not arrive")
        for future in waiting:
            future.result(PATIENCE)
    finally:
        for face in faces:
            face.close()
    assert order == list(range(6))


def test_r4_one_that_gave_up_is_passed_over(me: Actor, face: Face, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    held = me.acquire(lock)
    impatient, patient = face.actors(2)
    first = impatient.start(lock, "acquire", timeout=0.4)
    eventually(lambda: waiting_here(name) == 1, "the waiter did not arrive")
    second = patient.start(lock, "acquire", timeout=PATIENCE)
    with pytest.raises(LockTimeout):
        first.result(PATIENCE)
    eventually(lambda: waiting_here(name) == 1, "the second waiter has gone")
    me.release(held)
    patient.release(second.result(PATIENCE))


def test_r4_who_does_not_wait_does_not_overtake(me: Actor, other: Actor, face: Face, using: str, name: str) -> None:
    """With a waiter in the queue, an attempt with timeout=0 fails also in the moment of the release."""
    lock = advisory_lock(name, using=using)
    third = face.actor()
    held = me.acquire(lock)
    waiting = other.start(lock, "acquire", timeout=PATIENCE)
    eventually(lambda: waiting_here(name) == 1, "the waiter did not arrive")
    assert third.try_acquire(lock) is None
    me.release(held)
    lease = waiting.result(PATIENCE)
    assert third.try_acquire(lock) is None
    other.release(lease)


@pytest.mark.parametrize(
    "entry", [each for each in MATRIX if each.processes and each.fifo], ids=lambda entry: entry.using, indirect=True
)
def test_r4_processes_are_served_in_order(me: Actor, rival: Any, second_rival: Any, using: str, name: str) -> None:
    held = rival.acquire(using, name)
    first = second_rival.start_acquire(using, name)
    eventually(lambda: waiting_at_the_engine(using, name) == 1, "the other process does not wait")
    second = me.start(advisory_lock(name, using=using), "acquire", timeout=PATIENCE)
    eventually(lambda: waiting_at_the_engine(using, name) == 2, "this process does not wait")
    third = rival.start_acquire(using, name)
    # in the queue of its own process behind nobody, at the engine behind us
    eventually(lambda: waiting_at_the_engine(using, name) >= 2, "the holder's process does not wait")
    rival.release(held)
    number = second_rival.result(first)
    assert not second.done()
    second_rival.release(number)
    lease = second.result(PATIENCE)
    me.release(lease)
    rival.release(rival.result(third))


@across_processes
@pytest.mark.parametrize("face", ["sync"], indirect=True)
def test_r4_a_dead_waiter_is_passed_over(me: Actor, rival: Any, using: str, name: str) -> None:
    """The first in the queue is killed; the second does not wait for it."""
    held = rival.acquire(using, name)
    with Child(serve) as child:
        Rival(child).start_acquire(using, name)
        eventually(lambda: waiting_at_the_engine(using, name) == 1, "the other process does not wait")
        waiting = me.start(advisory_lock(name, using=using), "acquire", timeout=PATIENCE)
        eventually(lambda: waiting_at_the_engine(using, name) == 2, "this process does not wait")
        child.signal(signal.SIGKILL)
        child.process.wait(PATIENCE)
        killed = time.monotonic()
        rival.release(held)
        lease = waiting.result(PATIENCE)
        within(time.monotonic() - killed, 3)
    me.release(lease)


@across_processes
@pytest.mark.parametrize("face", ["sync"], indirect=True)
def test_r4_the_lock_of_a_dead_process_is_free(me: Actor, using: str, name: str, backend: Any) -> None:
    """At once where sessions hold it, at the end of its lease where a TTL does."""
    lock = advisory_lock(name, using=using)
    with Child(serve) as child:
        dying = Rival(child)
        if backend.supports_ttl:
            dying.call("acquire_for", using, name, 1.5)
        else:
            dying.acquire(using, name)
        assert me.try_acquire(lock) is None
        child.kill()
        lease = me.acquire(lock, timeout=5)
    me.release(lease)
