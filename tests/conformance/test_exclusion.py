"""R1: at most one exclusive holder per name, between contexts, threads, tasks and processes."""

from __future__ import annotations

import asyncio
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import LockNotAcquired, LockTimeout, advisory_lock
from tests.conformance.actors import PATIENCE, Actor, Face, Inside
from tests.conformance.rivals import RivalError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.matrix import Entry


def test_r1_a_second_context_is_refused_until_the_release(me: Actor, other: Actor, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    lease = me.acquire(lock)
    assert lease.held
    assert other.try_acquire(lock) is None
    with pytest.raises(LockNotAcquired) as busy:
        other.acquire(lock, timeout=0)
    assert type(busy.value) is LockNotAcquired
    me.release(lease)
    assert not lease.held
    other.release(other.acquire(lock, timeout=0))


def test_r1_another_process_is_refused_until_the_release(me: Actor, rival: Any, using: str, name: str) -> None:
    lock = advisory_lock(name, using=using)
    held = rival.acquire(using, name)
    assert me.try_acquire(lock) is None
    rival.release(held)
    lease = me.acquire(lock, timeout=0)
    with pytest.raises(RivalError) as busy:
        rival.acquire(using, name, timeout=0)
    assert busy.value.kind == "LockNotAcquired"
    me.release(lease)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_r1_the_critical_section_of_the_next_tests_loses_counts_without_a_lock(kind: str) -> None:
    face, inside = Face(kind), Inside()
    try:
        wait([actor.submit(face.critical(None, inside, 5)) for actor in face.actors(4)], PATIENCE)
    finally:
        face.close()
    assert inside.most > 1
    assert inside.counter < 20


def test_r1_four_contexts_one_inside_at_a_time(face: Face, using: str, name: str) -> None:
    lock, inside = advisory_lock(name, using=using, timeout=PATIENCE), Inside()
    for work in [actor.submit(face.critical(lock, inside, 5)) for actor in face.actors(4)]:
        work.result(PATIENCE)
    assert (inside.most, inside.counter) == (1, 20)


def test_r1_threads_and_tasks_exclude_each_other(using: str, name: str) -> None:
    lock, inside = advisory_lock(name, using=using, timeout=PATIENCE), Inside()
    faces = [Face("sync"), Face("async")]
    try:
        works = [actor.submit(face.critical(lock, inside, 4)) for face in faces for actor in face.actors(3)]
        for work in works:
            work.result(PATIENCE)
    finally:
        for face in faces:
            face.close()
    assert (inside.most, inside.counter) == (1, 24)


@pytest.mark.parametrize(
    ("alias", "take", "give"),
    [
        ("postgres", "SELECT pg_try_advisory_lock(4711)", "SELECT pg_advisory_unlock_all()"),
        ("mariadb", "SELECT GET_LOCK('bare', 0)", "SELECT RELEASE_ALL_LOCKS()"),
    ],
)
def test_r1_on_a_bare_session_four_of_four_tasks_get_in(databases: None, alias: str, take: str, give: str) -> None:
    connection = connections[alias].copy()

    def ask() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(take)
            return cursor.fetchone()[0]

    async def four() -> list[Any]:
        turn = asyncio.Lock()  # one statement at a time, as any driver wants it

        async def task() -> Any:
            async with turn:
                return await asyncio.to_thread(ask)

        return await asyncio.gather(*[task() for _ in range(4)])

    connection.inc_thread_sharing()
    try:
        assert asyncio.run(four()) in ([True] * 4, [1] * 4)
        with connection.cursor() as cursor:
            cursor.execute(give)
    finally:
        connection.close()


def test_r1_four_tasks_on_one_lock_one_inside_at_a_time(using: str, name: str) -> None:
    inside = Inside()

    async def task() -> None:
        async with advisory_lock(name, using=using, timeout=PATIENCE):
            seen = inside.enter()
            await asyncio.sleep(0.001)
            inside.leave(seen)

    async def four() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(task())

    asyncio.run(four())
    assert (inside.most, inside.counter) == (1, 4)


def test_r1_only_one_of_four_tasks_that_do_not_wait_gets_in(using: str, name: str) -> None:
    async def four() -> list[Any]:
        return await asyncio.gather(*[advisory_lock(name, using=using).atry_acquire() for _ in range(4)])

    leases = [lease for lease in asyncio.run(four()) if lease is not None]
    assert len(leases) == 1
    leases[0].release()


def test_r1_processes_lose_no_count(
    rival: Any, second_rival: Any, face: Face, using: str, name: str, tmp_path: Path
) -> None:
    """Two processes and two contexts of this one read a number, and write it back one higher."""
    file = tmp_path / "count"
    file.write_text("0")
    rounds = 20
    away = [somebody.start("count", using, name, str(file), rounds) for somebody in (rival, second_rival)]
    lock = advisory_lock(name, using=using, timeout=PATIENCE)
    here = [actor.submit(_counting(face, lock, file, rounds)) for actor in face.actors(2)]
    for future in here:
        future.result(PATIENCE)
    for somebody, token in zip((rival, second_rival), away, strict=True):
        somebody.result(token)
    assert int(file.read_text()) == 4 * rounds


def _counting(face: Face, lock: Any, file: Path, rounds: int) -> Any:
    def threads() -> None:
        for _ in range(rounds):
            with lock:
                _write(file, _read(file) + 1)

    async def tasks() -> None:
        for _ in range(rounds):
            async with lock:
                seen = _read(file)
                await asyncio.sleep(0)
                _write(file, seen + 1)

    return threads if face.kind == "sync" else tasks


def _read(file: Path) -> int:
    return int(file.read_text())


def _write(file: Path, number: int) -> None:
    file.write_text(str(number))


def _read(file: Path) -> int:
    return int(file.read_text())


def _write(file: Path, number: int) -> None:
    file.write_text(str(number))


def test_r1_without_the_lock_processes_lose_counts(resident_rival: Any, tmp_path: Path, databases: None) -> None:
    """The counter of the test above can lose: else it would prove nothing."""
    file = tmp_path / "count"
    file.write_text("0")
    tokens = [resident_rival.start("count", None, "", str(file), 300) for _ in range(4)]
    for token in tokens:
        resident_rival.result(token)
    assert int(file.read_text()) < 1200


def test_r1_names_and_aliases_do_not_exclude_each_other(
    me: Actor, other: Actor, entry: Entry, using: str, name: str
) -> None:
    elsewhere = "memory" if using != "memory" else "postgres"
    mine = me.acquire(advisory_lock(name, using=using))
    theirs = [
        other.acquire(advisory_lock(name + "x", using=using), timeout=0),
        other.acquire(advisory_lock(name, using=elsewhere), timeout=0),
    ]
    for lease in theirs:
        other.release(lease)
    me.release(mine)


def test_r1_a_timeout_is_a_kind_of_busy(me: Actor, rival: Any, using: str, name: str) -> None:
    held = rival.acquire(using, name)
    with pytest.raises(LockTimeout):
        me.acquire(advisory_lock(name, using=using), timeout=1)
    rival.release(held)
