"""What is particular about the backend in memory."""

from __future__ import annotations

import sys
import time

import pytest

from django_distlock import advisory_lock
from django_distlock.backends.memory import MemoryBackend
from django_distlock.keys import derive_key
from django_distlock.records import Claim
from tests.engines.actors import hold
from tests.support.processes import Child


def test_r21_nothing_is_kept_of_a_lock_that_was_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences rise all the same, also when the clock is set back."""
    backend = MemoryBackend("memory", {})
    claims = [Claim(key=derive_key("", "memory", f"n{number}"), ttl=30, token="t") for number in range(200)]
    last: dict[bytes, int] = {}
    before = None
    for round_ in range(6):
        monkeypatch.setattr(time, "time_ns", lambda round_=round_: (1_000_000 - 1000 * round_) * 10**9)
        for claim in claims:
            grant = backend.try_acquire(claim)
            assert grant is not None
            assert grant.fence is not None
            assert grant.fence > last.get(claim.key.digest, 0)
            last[claim.key.digest] = grant.fence
            assert backend.release(grant)
        size = sum(sys.getsizeof(value) for value in vars(backend).values() if isinstance(value, dict))
        assert size == (before or size)
        assert not any(value for value in vars(backend).values() if isinstance(value, dict))


@pytest.mark.usefixtures("databases")
def test_r1_another_process_does_not_see_it(name: str) -> None:
    """It is for tests and for programs of one process, and promises nothing to others."""
    with Child(hold, "memory", name) as child:
        assert child.hear() == "held"
        with advisory_lock(name, using="memory", timeout=0):
            child.say()
            assert child.hear() == "released"
