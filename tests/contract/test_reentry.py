"""R2: re-entry asks the engine nothing, in threads and in tasks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock
from tests.contract.conftest import both_faces

if TYPE_CHECKING:
    from tests.contract.actors import Actor

ENGINE_CALLS = (
    "acquire_fast",
    "try_acquire",
    "atry_acquire",
    "release_fast",
    "release",
    "arelease",
    "extend",
    "withdraw",
)


@pytest.fixture
def asked(backend: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the engine was asked for what."""
    calls: Counter[str] = Counter()

    def spy(method: str) -> Any:
        original = getattr(backend, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[method] += 1
            return original(*args, **kwargs)

        return call

    for method in ENGINE_CALLS:
        monkeypatch.setattr(backend, method, spy(method))
    return calls


@both_faces
def test_r2_reentry_costs_no_round_trip(me: Actor, using: str, name: str, backend: Any, asked: Counter[str]) -> None:
    lock = advisory_lock(name, using=using)
    outer = me.acquire(lock)
    before = Counter(asked)
    assert before
    inner = me.acquire(lock)
    assert outer.valid_until == inner.valid_until
    if backend.supports_fencing:
        assert outer.fence == inner.fence
    me.release(inner)
    me.enter(lock)
    me.exit(lock)
    assert asked == before
    me.release(outer)
    assert asked != before
