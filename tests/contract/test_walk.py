"""One walk through the life of a lock, for every engine, in threads and in tasks: take, enter again, be refused, wait,
time out, release. R1: at most one exclusive holder per name, between contexts, threads, tasks and processes. What is
cancelled is in test_cancellation.py, what is lost in test_holding.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockNotAcquired, LockTimeout, advisory_lock
from tests.contract.actors import PATIENCE, Actor, Face, Inside, turns
from tests.contract.conftest import across_processes, both_faces
from tests.contract.rivals import RivalError
from tests.contract.watching import somebody_waits

if TYPE_CHECKING:
    from pathlib import Path


@both_faces
def test_r1_r2_r5_r6_the_life_of_a_lock(me: Actor, other: Actor, rival: Any, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    leases = [me.acquire(lock), me.acquire(advisory_lock(name, using=using), timeout=0), me.try_acquire(lock)]
    assert len({lease._grant for lease in leases}) == 1, "to enter again asks the engine for nothing"
    for lease in leases:
        assert lease.held
        assert other.try_acquire(lock) is None
        with pytest.raises(LockNotAcquired, match=r"is held by another caller\.$") as busy:
            other.acquire(lock, timeout=0)
        assert type(busy.value) is LockNotAcquired
        with pytest.raises(RivalError) as refused:
            rival.acquire(using, name, timeout=0)
        assert refused.value.kind == "LockNotAcquired"
        me.release(lease)
    theirs = rival.acquire(using, name, timeout=0)
    assert me.try_acquire(lock) is None
    with pytest.raises(LockTimeout, match=r"after 1 s"):
        me.acquire(lock, timeout=1)
    waiting = me.start(lock, "acquire", timeout=None)
    somebody_waits(name)
    assert not waiting.done()
    rival.release(theirs)
    me.release(waiting.result(PATIENCE))
    rival.release(rival.acquire(using, name, timeout=0))


def test_r1_four_threads_and_four_tasks_one_inside_at_a_time(using: str, name: str) -> None:
    lock, inside = advisory_lock(name, using=using, timeout=PATIENCE), Inside()
    faces = [Face("sync"), Face("async")]
    try:
        works = [actor.submit(face.critical(lock, inside, 4)) for face in faces for actor in face.actors(4)]
        for work in works:
            work.result(PATIENCE)
    finally:
        for face in faces:
            face.close()
    assert (inside.most, inside.counter) == (1, 32)


@across_processes
def test_r1_processes_lose_no_count(rival: Any, second_rival: Any, using: str, name: str, tmp_path: Path) -> None:
    """Two processes, and a thread and a task of this one, read a number and write it back one higher."""
    file, rounds = tmp_path / "count", 20
    file.write_text("0")
    lock = advisory_lock(name, using=using, timeout=PATIENCE)

    def count() -> None:
        for _ in range(rounds):
            with lock:
                file.write_text(str(int(file.read_text()) + 1))

    async def acount() -> None:
        for _ in range(rounds):
            async with lock:
                seen = int(file.read_text())
                await turns()
                file.write_text(str(seen + 1))

    away = [(somebody, somebody.start("count", using, name, str(file), rounds)) for somebody in (rival, second_rival)]
    faces = [Face("sync"), Face("async")]
    try:
        here = [face.actor().submit(work) for face, work in zip(faces, (count, acount), strict=True)]
        for future in here:
            future.result(PATIENCE)
    finally:
        for face in faces:
            face.close()
    for somebody, token in away:
        somebody.result(token)
    assert int(file.read_text()) == 4 * rounds


def test_r1_names_and_aliases_do_not_exclude_each_other(
    me: Actor, other: Actor, using: str, name: str, settings: Any
) -> None:
    """Nor do two aliases of one server: the alias is a part of the key."""
    settings.DISTLOCK = {**settings.DISTLOCK, "elsewhere": settings.DISTLOCK[using]}
    mine = me.acquire(advisory_lock(name, using=using))
    for free in (advisory_lock(name + "x", using=using), advisory_lock(name, using="elsewhere")):
        other.release(other.acquire(free, timeout=0))
    me.release(mine)
