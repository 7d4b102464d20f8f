"""R1: at most one exclusive holder per name, between contexts, threads, tasks and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock import advisory_lock
from tests.contract.actors import PATIENCE, Actor, Face, Inside, turns
from tests.contract.conftest import across_processes

if TYPE_CHECKING:
    from pathlib import Path


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
