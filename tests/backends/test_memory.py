"""What is particular about the backend in memory."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from django_distlock.backends.memory import MemoryBackend
from django_distlock.keys import derive_key
from django_distlock.records import Claim

if TYPE_CHECKING:
    import pytest


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
