"""R7: whatever moment of an acquire or a release the exception of a signal meets, three seconds later every lock can be
had by other processes, and by this one, which goes on. A lease may live for as long as its TTL."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.faults.alarms import SOON, TTL, interrupt, take_all_elsewhere
from tests.matrix import MATRIX, Entry
from tests.support.processes import Child

# `DISTLOCK_ALARMS=2000 pytest tests/faults/test_alarms.py` for more.
COUNT = int(os.environ.get("DISTLOCK_ALARMS", "200"))
FIRST = {"memory", "leasetable", "postgres", "redis"}


@pytest.mark.usefixtures("databases")
@pytest.mark.parametrize(
    "entry",
    [pytest.param(entry, id=entry.using, marks=() if entry.using in FIRST else pytest.mark.tier2) for entry in MATRIX],
)
def test_r7_alarms_at_random_moments_leave_nothing_held(entry: Entry, name: str) -> None:
    using, seed = entry.using, random.randrange(10**6)
    with Child(interrupt, using, name, COUNT, seed) as child:
        assert child.hear(0.2 * COUNT + 60) >= COUNT / 2, "hardly an alarm rang inside"
        time.sleep(SOON)
        child.say()
        assert child.hear() == [], f"seed {seed}: the table of the process is not empty"
        if entry.processes:
            with Child(take_all_elsewhere, using, name, TTL) as other:
                assert other.hear() == [], f"seed {seed}"
        child.say()
