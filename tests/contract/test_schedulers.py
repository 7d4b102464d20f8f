"""R1 and R6 under schedulers beside asyncio: greenlets of gevent exclude each other; tasks of trio are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import trio
import trio.lowlevel
from django.db import connections

from django_distlock import UnsupportedOperation, advisory_lock, lock_all, row_lock, semaphore
from tests.data.app.models import Account
from tests.matrix import MATRIX
from tests.support.nursery import ROOT

ALIASES = [entry.using for entry in MATRIX]


def crowds() -> dict[str, Any]:
    """What tests.contract.green says of each alias, and that it says nothing else."""
    names = {alias: str(connections[alias].settings_dict["NAME"]) for alias in connections}
    command = [sys.executable, "-m", "tests.contract.green", json.dumps(ALIASES), json.dumps(names)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)  # type: ignore[no-any-return]


@pytest.mark.tier2
def test_r1_greenlets_of_gevent(databases: None) -> None:
    """With all of the standard library patched, a greenlet is a thread."""
    for using, seen in crowds().items():
        assert seen == {"inside": 0, "most": 1, "entered": 5, "errors": []}, using


RECIPES: dict[str, Any] = {
    "lock": lambda name, using: advisory_lock(name, using=using),
    "set": lambda name, using: lock_all([name], using=using),
    "semaphore": lambda name, using: semaphore(name, 1, using=using),
}


@pytest.mark.parametrize("kind", RECIPES)
def test_r6_tasks_of_trio_are_refused(name: str, kind: str) -> None:
    """They would all be the one thread in which trio runs, and so enter each other's locks, whatever the engine."""
    lock = RECIPES[kind](name, "memory")
    refused: list[str] = []

    async def sync() -> None:
        with lock:
            await trio.lowlevel.checkpoint()

    async def awaiting() -> None:
        async with lock:
            pass

    async def main() -> None:
        for call in (sync, awaiting, lock.aacquire, lock.atry_acquire):
            with pytest.raises(
                UnsupportedOperation, match=r"in a trio task: .*`await trio\.to_thread\.run_sync\("
            ) as e:
                await call()
            refused.append(str(e.value))
        with pytest.raises(UnsupportedOperation, match="in a trio task"):
            lock(lambda: None)()

    trio.run(main)
    assert len(refused) == 4


def test_r6_data_locks_refuse_them_too(databases: None) -> None:
    async def main() -> None:
        with pytest.raises(UnsupportedOperation, match="in a trio task"), row_lock(Account.objects.all()):
            pytest.fail("entered")

    trio.run(main)


def test_r1_threads_of_trio_exclude_each_other(name: str) -> None:
    """The way that the error shows; and other threads of a process that runs trio somewhere need nothing."""
    lock = advisory_lock(name, using="memory", timeout=0)

    def work() -> None:
        with lock:
            assert trio.from_thread.run(trio.to_thread.run_sync, lock.try_acquire) is None

    trio.run(trio.to_thread.run_sync, work)
    lock.acquire().release()
