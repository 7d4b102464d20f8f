"""R4: many names are waited for at once in one process, more than it has connections to wait on."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock
from tests.engines.actors import hold
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.matrix import Entry

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]

CROWD = 40
PATIENCE = 60.0  # seconds


def compete(link: Any, using: str, name: str) -> None:
    """Take the lock again and again, as another process does: it is never free."""
    lock = advisory_lock(name, using=using, timeout=PATIENCE)
    ended = threading.Event()
    threading.Thread(target=lambda: (link.hear(), ended.set()), daemon=True).start()
    with lock:
        link.say("held")
    while not ended.is_set():
        with lock:
            ended.wait(0.005)


@pytest.mark.parametrize("in_tasks", [False, True], ids=["sync", "async"])
def test_r4_whoever_waits_gets_in_however_many_wait(entry: Entry, in_tasks: bool, name: str) -> None:
    """40 names are held elsewhere and waited for here; one more goes to and fro between three other processes."""
    if not entry.processes:
        return
    using = entry.using
    crowd, wanted = [f"{name} {number}" for number in range(CROWD)], f"{name} wanted"
    with ExitStack() as stack:
        holder = stack.enter_context(Child(hold, using, *crowd))
        rivals = [stack.enter_context(Child(compete, using, wanted)) for _ in range(3)]
        for child in (holder, *rivals):
            assert child.hear() == "held"
        if in_tasks:
            asyncio.run(wait_in_tasks(using, crowd, wanted, holder))
        else:
            wait_in_threads(using, crowd, wanted, holder)
        for child in rivals:
            child.say("end")


def wait_in_threads(using: str, crowd: list[str], wanted: str, holder: Child) -> None:
    served: list[str] = []

    def wait(name: str) -> None:
        with advisory_lock(name, using=using, timeout=PATIENCE):
            served.append(name)

    threads = [threading.Thread(target=wait, args=(name,)) for name in crowd]
    for thread in threads:
        thread.start()
    wait(wanted)
    assert served == [wanted]
    holder.say("release")
    for thread in threads:
        thread.join(PATIENCE)
    assert set(served) == {wanted, *crowd}


async def wait_in_tasks(using: str, crowd: list[str], wanted: str, holder: Child) -> None:
    served: list[str] = []

    async def wait(name: str) -> None:
        async with advisory_lock(name, using=using, timeout=PATIENCE):
            served.append(name)

    tasks = [asyncio.create_task(wait(name)) for name in crowd]
    await asyncio.sleep(0.1)
    await wait(wanted)
    assert served == [wanted]
    holder.say("release")
    await asyncio.gather(*tasks)
    assert set(served) == {wanted, *crowd}
