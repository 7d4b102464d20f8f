"""R1 and R4 for shared locks: readers together, writers alone and not overtaken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock
from tests.conftest import eventually
from tests.contract.actors import PATIENCE
from tests.contract.conftest import both_faces, sharing
from tests.contract.rivals import RivalError
from tests.contract.watching import somebody_waits, waiting_at_the_engine, waiting_here

if TYPE_CHECKING:
    from tests.contract.actors import Actor, Face

pytestmark = sharing


def recipes(using: str, name: str) -> tuple[Any, Any]:
    """For a reader and for a writer."""
    return advisory_lock(name, using=using, shared=True), advisory_lock(name, using=using)


@both_faces
def test_r1_readers_together_writers_alone(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    reader, writer = recipes(using, name)
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
    lease = me.acquire(writer, timeout=0)
    assert other.try_acquire(reader) is None
    me.release(lease)


def test_r1_a_reader_that_leaves_takes_no_other_along(face: Face, rival: Any, using: str, name: str) -> None:
    """Also where one session holds for several readers."""
    reader, writer = recipes(using, name)
    actors, last = face.actors(4), face.actor()
    leases = [actor.acquire(reader, timeout=0) for actor in actors]
    for actor, lease in zip(actors, leases, strict=True):
        assert last.try_acquire(writer) is None
        with pytest.raises(RivalError, match="LockNotAcquired"):
            rival.acquire(using, name, timeout=0)
        actor.release(lease)
    rival.release(rival.acquire(using, name, timeout=0))


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


def test_r4_nor_is_a_writer_of_another_process(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    """The queue of this process knows nothing of it: the engine itself refuses the reader."""
    reader, _ = recipes(using, name)
    first = me.acquire(reader)
    writing = rival.start_acquire(using, name)
    eventually(lambda: waiting_at_the_engine(using, name) + waiting_here(name) > 0, "the writer does not wait")
    assert other.try_acquire(reader) is None
    me.release(first)
    rival.release(rival.result(writing))
