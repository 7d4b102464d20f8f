"""Programs that end with locks held: promptly, without a word, and the server has the lock back."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock
from django_distlock.manager.lock_table import lock_table
from tests.conftest import PATIENCE, eventually
from tests.faults.server import SESSION_LOCKS, holders
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

pytestmark = pytest.mark.usefixtures("databases")

kept: list[Any] = []


def forget(link: Any, using: str, name: str) -> None:
    kept.append(advisory_lock(name, using=using).acquire())
    link.say("held")


def forget_in_a_generator(link: Any, using: str, name: str) -> None:
    """Which is closed somewhen during the end of the interpreter."""

    def hold() -> Generator[None, None, None]:
        with advisory_lock(name, using=using):
            yield

    kept.append(hold())
    next(kept[-1])
    kept.append(kept)
    link.say("held")


def forget_in_a_thread(link: Any, using: str, name: str) -> None:
    """One daemon thread holds, another one waits behind it."""

    held = threading.Event()

    def hold() -> None:
        with advisory_lock(name, using=using):
            link.say("held")
            held.set()
            threading.Event().wait()

    def wait() -> None:
        with advisory_lock(name, using=using, timeout=None):
            pass

    threading.Thread(target=hold, daemon=True).start()
    assert held.wait(PATIENCE)
    if using in SESSION_LOCKS:
        assert holders(using, name)
    threading.Thread(target=wait, daemon=True).start()
    eventually(lambda: len(list(lock_table.everything())) == 2, "nobody waits")


def forget_in_a_task(link: Any, using: str, name: str) -> None:
    async def main() -> None:
        kept.append(await advisory_lock(name, using=using).aacquire())
        link.say("held")

    asyncio.run(main())


def forget_a_task(link: Any, using: str, name: str) -> None:
    """asyncio.run() cancels it at the end."""

    async def hold(held: asyncio.Event) -> None:
        async with advisory_lock(name, using=using):
            held.set()
            await asyncio.Event().wait()

    async def main() -> None:
        held = asyncio.Event()
        kept.append(asyncio.create_task(hold(held)))
        await held.wait()
        link.say("held")

    asyncio.run(main())


FORGETFUL = [forget, forget_in_a_generator, forget_in_a_thread, forget_in_a_task, forget_a_task]


@pytest.mark.parametrize("using", [*SESSION_LOCKS, "leasetable"])
@pytest.mark.parametrize("function", FORGETFUL, ids=lambda function: function.__name__)
def test_a_program_that_ends_with_a_lock_held(using: str, function: Callable[..., None], name: str) -> None:
    with Child(function, using, name) as child:
        assert child.hear() == "held"
        said = time.monotonic()
        child.finish()
        within(time.monotonic() - said, 2.5)
        assert child._errors == []
    if using in SESSION_LOCKS:
        with advisory_lock(name, using=using, timeout=2):
            pass
