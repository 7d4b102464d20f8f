"""Processes that take one lock again and again while servers fail over, and what a ledger outside of them says."""

from __future__ import annotations

import contextlib
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings

from django_distlock import DistlockError, advisory_lock
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.faults.history import History, Journal
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# `DISTLOCK_HOLDS=200 pytest tests/faults/test_fail_overs.py` for more between two faults.
WORKERS, HOLDS = 4, int(os.environ.get("DISTLOCK_HOLDS", "30"))
PATIENCE = 60.0  # seconds for an election on a busy machine


def work(link: Any, name: str, using: str, options: dict[str, Any], ledger: str, over: str) -> None:
    """Take the lock and write into the ledger until there is a file ``over``. ``options``: the OPTIONS of the alias."""
    settings.DISTLOCK = {**settings.DISTLOCK, using: {**settings.DISTLOCK[using], "OPTIONS": options}}
    journal = Journal(ledger)
    link.say("ready")
    while not Path(over).exists():
        with contextlib.suppress(DistlockError), journal.hold(advisory_lock(name, using=using, timeout=5)):
            time.sleep(0.002)
    registry.close()
    link.say("done")


@contextlib.contextmanager
def under_load(name: str, using: str, folder: Path, longest: float, **options: Any) -> Iterator[Callable[[], None]]:
    """Gives a function that waits until the lock was had HOLDS times more. At the end of the block nobody was in beside
    another one, the fence rose from holder to holder, nobody waited for more than ``longest`` seconds, and everybody
    had a turn."""
    ledger, over = folder / "ledger", folder / "over"
    ledger.touch()

    def holds() -> int:
        return ledger.read_text().count('"granted"')

    def goes_on() -> None:
        before = holds()
        eventually(lambda: holds() >= before + HOLDS, "nobody gets the lock", PATIENCE + HOLDS / 10, pause=0.05)

    with contextlib.ExitStack() as stack:
        arguments = (name, using, options, str(ledger), str(over))
        workers = [stack.enter_context(Child(work, *arguments)) for _ in range(WORKERS)]
        for worker in workers:
            assert worker.hear() == "ready"
        everybody = {worker.pid for worker in workers}
        eventually(lambda: {hold.pid for hold in History.read(ledger).holds} == everybody, "one has no turn", PATIENCE)
        yield goes_on
        over.touch()
        assert [worker.hear() for worker in workers] == ["done"] * WORKERS
    history = History.read(ledger)
    assert history.check() == []
    assert max(after.acquired - before.acquired for before, after in pairwise(history.holds)) < longest
    assert {hold.pid for hold in history.holds} == {worker.pid for worker in workers}
