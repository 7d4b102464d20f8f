"""What a decorated function does when the lock is busy: raise, skip, or hand over; sync and async."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.utils.decorators import method_decorator
from django.views import View

from django_distlock import BackendUnavailable, DeadlockDetected, LockNotAcquired, LockTimeout, advisory_lock
from django_distlock.manager.registry import registry
from tests.locks.elsewhere import held_elsewhere, is_free

if TYPE_CHECKING:
    from collections.abc import Callable


class Ledger:
    """A function to decorate, sync or async, that writes down how it was called."""

    def __init__(self, kind: str) -> None:
        self.asynchronous = kind == "async"
        self.calls: list[tuple[Any, ...]] = []

    def lock(self, recipe: Any, error: Exception | None = None) -> Callable[..., Any]:
        """A function that holds ``recipe``; both kinds are called alike."""

        def work(*args: Any, **kwargs: Any) -> str:
            self.calls.append((args, kwargs))
            if error is not None:
                raise error
            return "worked"

        async def awork(*args: Any, **kwargs: Any) -> str:
            return work(*args, **kwargs)

        return async_to_sync(recipe(awork)) if self.asynchronous else recipe(work)  # type: ignore[no-any-return]


@pytest.fixture(params=["sync", "async"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    return Ledger(request.param)


def test_r5_raise_is_the_default_and_skip_returns_none(ledger: Ledger, name: str) -> None:
    for timeout, error in ((0, LockNotAcquired), (0.1, LockTimeout)):
        raising, skipping = (
            ledger.lock(advisory_lock(name, using="memory", timeout=timeout, on_busy=on_busy))
            for on_busy in ("raise", "skip")
        )
        with held_elsewhere(name):
            with pytest.raises(error) as refused:
                raising()
            assert type(refused.value) is error
            assert skipping() is None
        assert ledger.calls == []
    assert raising(1, a=2) == skipping(1, a=2) == "worked"
    assert ledger.calls == [((1,), {"a": 2})] * 2


def test_callable_gets_the_same_arguments_and_gives_the_result(ledger: Ledger, name: str) -> None:
    def later(*args: Any, **kwargs: Any) -> Any:
        assert not is_free(name), "the holder has not gone"
        return "later", args, kwargs

    async def alater(*args: Any, **kwargs: Any) -> Any:
        return later(*args, **kwargs)

    for on_busy in (later, alater) if ledger.asynchronous else (later,):
        locked = ledger.lock(advisory_lock(name, using="memory", timeout=0, on_busy=on_busy))
        with held_elsewhere(name):
            assert locked(1, 2, a=3) == ("later", (1, 2), {"a": 3})
        assert ledger.calls == []
    assert locked(1, 2, a=3) == "worked"


@pytest.mark.parametrize("on_busy", ["raise", "skip", lambda *args: "later"], ids=["raise", "skip", "callable"])
def test_r6_r8_other_errors_are_not_taken_for_a_busy_lock(
    name: str, on_busy: Any, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A LockNotAcquired of the function itself, a deadlock, and a backend that is down."""
    recipe = advisory_lock(name, using="memory", timeout=0, on_busy=on_busy)
    with pytest.raises(LockNotAcquired, match="another lock"):
        ledger.lock(recipe, LockNotAcquired("another lock"))()
    assert is_free(name)
    with advisory_lock(name, using="memory", shared=True), pytest.raises(DeadlockDetected):
        recipe(lambda: "worked")()

    def down(*args: Any, **kwargs: Any) -> Any:
        raise BackendUnavailable("gone")

    for attempt in ("try_acquire", "atry_acquire"):
        monkeypatch.setattr(registry.entry("memory").backend, attempt, down, raising=False)
    with pytest.raises(BackendUnavailable, match="gone"):
        ledger.lock(recipe)()
    assert len(ledger.calls) == 1


async def abusy(*args: Any) -> str:
    return "busy"


def test_wrong_on_busy_is_refused() -> None:
    """In a block, which cannot be skipped; and an async one above a sync function: nothing would await it."""
    for on_busy in ("skip", print):
        lock = advisory_lock("x", using="memory", on_busy=on_busy)
        for enter in (lock.__enter__, async_to_sync(lock.__aenter__)):
            with pytest.raises(TypeError, match=r"use try_acquire\(\)"):
                enter()
    assert is_free("x")
    for asynchronous in (abusy, functools.partial(abusy)):
        with pytest.raises(TypeError, match=r"^on_busy is async and .*<lambda> is not: nothing would await"):
            advisory_lock("x", on_busy=asynchronous)(lambda: None)


def test_on_busy_of_class_based_views(name: str, rf: Any) -> None:
    """It is known at the call only whether that is async; then a sync one may answer for an async view."""
    decorator = method_decorator(advisory_lock(name, using="memory", timeout=0, on_busy=abusy), name="dispatch")

    async def aget(self: Any, request: Any) -> Any:
        return "worked"

    plain = decorator(type("Plain", (View,), {"get": lambda self, request: "worked"})).as_view()
    asynchronous = decorator(type("Async", (View,), {"get": aget})).as_view()
    with held_elsewhere(name):
        assert asyncio.run(asynchronous(rf.get("/"))) == "busy"
    with pytest.raises(TypeError, match=r"^on_busy is async and .* is not"):
        plain(rf.get("/"))
    assert is_free(name)
