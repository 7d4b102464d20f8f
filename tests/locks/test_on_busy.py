"""What a decorated function does when the lock is busy: raise, skip, or hand over; sync and async."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.decorators import method_decorator
from django.views import View

from django_distlock import (
    BackendUnavailable,
    DeadlockDetected,
    LockNotAcquired,
    LockTimeout,
    advisory_lock,
    lock_all,
    semaphore,
)
from django_distlock.manager.registry import registry
from tests.locks.elsewhere import held_elsewhere, in_thread, is_free
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable


class Ledger:
    """A function to decorate, sync or async, that writes down how it was called."""

    def __init__(self, kind: str) -> None:
        self.asynchronous = kind == "async"
        self.calls: list[tuple[Any, ...]] = []

    def lock(self, recipe: Any) -> Callable[..., Any]:
        """A function that holds ``recipe``; both kinds are called alike."""

        def work(*args: Any, **kwargs: Any) -> str:
            self.calls.append((args, kwargs))
            return "worked"

        async def awork(*args: Any, **kwargs: Any) -> str:
            await asyncio.sleep(0)
            return work(*args, **kwargs)

        if not self.asynchronous:
            return recipe(work)  # type: ignore[no-any-return]
        locked = recipe(awork)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await locked(*args, **kwargs)

        return lambda *args, **kwargs: asyncio.run(call(*args, **kwargs))


@pytest.fixture(params=["sync", "async"])
def ledger(request: pytest.FixtureRequest) -> Ledger:
    return Ledger(request.param)


def test_raise_is_the_default_and_without_waiting_it_is_lock_not_acquired(ledger: Ledger, name: str) -> None:
    locked = ledger.lock(advisory_lock(name, using="memory", timeout=0))
    with held_elsewhere(name), pytest.raises(LockNotAcquired, match="is held by another caller") as refused:
        locked()
    assert type(refused.value) is LockNotAcquired
    assert ledger.calls == []
    assert locked(1, a=2) == "worked"
    assert ledger.calls == [((1,), {"a": 2})]


def test_r5_raise_after_waiting_is_lock_timeout(ledger: Ledger, name: str) -> None:
    locked = ledger.lock(advisory_lock(name, using="memory", timeout=0.2))
    with held_elsewhere(name):
        start = time.monotonic()
        with pytest.raises(LockTimeout, match=r"was still held by another caller after 0\.2 s"):
            locked()
        within(time.monotonic() - start, 0.25, least=0.2)
    assert ledger.calls == []


@pytest.mark.parametrize("timeout", [0, 0.1])
def test_skip_returns_none_without_calling(ledger: Ledger, name: str, timeout: float) -> None:
    locked = ledger.lock(advisory_lock(name, using="memory", timeout=timeout, on_busy="skip"))
    with held_elsewhere(name):
        start = time.monotonic()
        assert locked(1) is None
        within(time.monotonic() - start, timeout + 0.05, least=timeout)
    assert ledger.calls == []
    assert locked(1) == "worked"
    assert is_free(name)


@pytest.mark.parametrize("on_busy", ["skip", lambda *args: None])
def test_r5_without_a_timeout_that_of_the_alias_counts(ledger: Ledger, name: str, on_busy: Any, settings: Any) -> None:
    settings.DISTLOCK = {**settings.DISTLOCK, "brief": {**settings.DISTLOCK["memory"], "TIMEOUT": 0.1}}
    locked = ledger.lock(advisory_lock(name, using="brief", on_busy=on_busy))
    with held_elsewhere(name, using="brief"):
        start = time.monotonic()
        assert locked() is None
        within(time.monotonic() - start, 0.15, least=0.1)


def test_callable_gets_the_same_arguments_and_gives_the_result(ledger: Ledger, name: str) -> None:
    def later(*args: Any, **kwargs: Any) -> Any:
        assert not is_free(name), "the holder has not gone"
        return "later", args, kwargs

    locked = ledger.lock(advisory_lock(name, using="memory", timeout=0, on_busy=later))
    with held_elsewhere(name):
        assert locked(1, 2, a=3) == ("later", (1, 2), {"a": 3})
    assert ledger.calls == []
    assert locked(1, 2, a=3) == "worked"


def test_async_callable_above_an_async_def(name: str) -> None:
    async def later(*args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(0)
        return "later", args, kwargs

    locked = Ledger("async").lock(advisory_lock(name, using="memory", timeout=0, on_busy=later))
    with held_elsewhere(name):
        assert locked(1, a=2) == ("later", (1,), {"a": 2})


def test_callable_may_fail(ledger: Ledger, name: str) -> None:
    def later(*args: Any) -> Any:
        raise KeyError("its own")

    locked = ledger.lock(advisory_lock(name, using="memory", timeout=0, on_busy=later))
    with held_elsewhere(name), pytest.raises(KeyError, match="its own"):
        locked(1)
    assert is_free(name)


def test_callable_of_a_method_gets_self(name: str) -> None:
    class Account:
        def later(self, amount: int) -> Any:
            return self, amount

        @advisory_lock(name, using="memory", timeout=0, on_busy=later)
        def pay(self, amount: int) -> Any:
            return "paid"

        @advisory_lock(name, using="memory", timeout=0, on_busy=later)
        async def apay(self, amount: int) -> Any:
            return "paid"

    account = Account()
    with held_elsewhere(name):
        assert account.pay(3) == (account, 3)
        assert asyncio.run(account.apay(3)) == (account, 3)
    assert account.pay(3) == "paid"
    assert asyncio.run(account.apay(3)) == "paid"


@pytest.mark.parametrize("on_busy", ["raise", "skip", lambda: "later"])
def test_busy_of_the_body_is_not_taken_for_ours(ledger: Ledger, name: str, on_busy: Any) -> None:
    """A LockNotAcquired that the function itself raises is its own error."""

    def work() -> Any:
        raise LockNotAcquired("another lock")

    async def awork() -> Any:
        raise LockNotAcquired("another lock")

    recipe = advisory_lock(name, using="memory", timeout=0, on_busy=on_busy)
    with pytest.raises(LockNotAcquired, match="another lock"):
        asyncio.run(recipe(awork)()) if ledger.asynchronous else recipe(work)()
    assert is_free(name)


@pytest.mark.parametrize("on_busy", ["raise", "skip", lambda: "later"])
def test_r6_on_busy_is_not_about_a_backend_that_is_down(
    ledger: Ledger, name: str, on_busy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = registry.entry("memory").backend

    def down(*args: Any, **kwargs: Any) -> Any:
        raise BackendUnavailable("gone")

    async def adown(*args: Any, **kwargs: Any) -> Any:
        raise BackendUnavailable("gone")

    for attempt, broken in (("try_acquire", down), ("acquire_fast", down), ("atry_acquire", adown)):
        monkeypatch.setattr(backend, attempt, broken, raising=False)
    locked = ledger.lock(advisory_lock(name, using="memory", timeout=0, on_busy=on_busy))
    with pytest.raises(BackendUnavailable, match="gone"):
        locked()
    assert ledger.calls == []


@pytest.mark.parametrize("on_busy", ["raise", "skip", lambda: "later"])
def test_r8_on_busy_is_not_about_a_deadlock(name: str, on_busy: Any) -> None:
    """Exclusive while holding shared would wait for itself: an error in the program, whatever on_busy says."""
    locked = advisory_lock(name, using="memory", on_busy=on_busy)(lambda: "worked")
    with advisory_lock(name, using="memory", shared=True), pytest.raises(DeadlockDetected):
        locked()


def test_r2_recursion_is_no_busy_lock(name: str) -> None:
    @advisory_lock(name, using="memory", timeout=0, on_busy="skip")
    def countdown(number: int) -> int:
        return 0 if number == 0 else 1 + countdown(number - 1)

    @advisory_lock(name, using="memory", timeout=0, on_busy="skip")
    async def acountdown(number: int) -> int:
        return 0 if number == 0 else 1 + await acountdown(number - 1)

    assert countdown(50) == 50
    assert asyncio.run(acountdown(50)) == 50
    assert in_thread(countdown, 3) == 3
    assert is_free(name)


def test_stacked_locks_answer_each_for_itself(name: str) -> None:
    """The outer one is given back when the inner one is busy, whatever the inner one then does."""
    inner = advisory_lock(name + "i", using="memory", timeout=0, on_busy=lambda: "inner")
    outer = advisory_lock(name + "o", using="memory", timeout=0, on_busy=lambda: "outer")
    both = outer(inner(lambda: "worked"))
    with held_elsewhere(name + "i"):
        assert both() == "inner"
        assert is_free(name + "o")
    with held_elsewhere(name + "o"):
        assert both() == "outer"
    assert both() == "worked"


def test_lock_all_and_semaphore_raise(ledger: Ledger, name: str) -> None:
    every = ledger.lock(lock_all([name, name + "2"], using="memory", timeout=0))
    with held_elsewhere(name + "2"):
        with pytest.raises(LockNotAcquired, match="One of the locks"):
            every()
        assert is_free(name)
    slots = ledger.lock(semaphore(name, 1, using="memory", timeout=0))
    with semaphore(name, 1, using="memory"), pytest.raises(LockNotAcquired, match="Each of the 1 slots"):
        slots()
    assert ledger.calls == []


def test_result_of_a_busy_async_def_is_always_awaited(name: str) -> None:
    """The call gives a coroutine, busy or not: nothing is asked before it is awaited."""

    async def work() -> str:
        return "worked"

    locked = advisory_lock(name, using="memory", timeout=0, on_busy="skip")(work)
    with held_elsewhere(name):
        coroutine = locked()
        assert inspect.iscoroutine(coroutine)
    assert asyncio.run(coroutine) == "worked"


@pytest.mark.parametrize("wrong", ["Raise", "", "ignore", None, 7, True])
def test_wrong_on_busy_is_refused_when_the_lock_is_made(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r'^on_busy must be "raise", "skip" or a callable, not '):
        advisory_lock("x", on_busy=wrong)


@pytest.mark.parametrize("on_busy", ["skip", print])
def test_on_busy_in_a_with_block_is_refused(on_busy: Any, name: str) -> None:
    lock = advisory_lock(name, using="memory", on_busy=on_busy)

    async def enter() -> None:
        async with lock:
            pass

    with pytest.raises(TypeError, match=r"use try_acquire\(\)"), lock:
        pass
    with pytest.raises(TypeError, match=r"use try_acquire\(\)"):
        asyncio.run(enter())
    assert is_free(name)


async def abusy(*args: Any) -> str:
    return "busy"


def test_async_callable_above_a_sync_function_is_refused_where_it_is_decorated() -> None:
    """Nothing would await what it returns."""
    for recipe in (advisory_lock("x", on_busy=abusy), advisory_lock("x", on_busy=functools.partial(abusy))):
        with pytest.raises(TypeError, match=r"^on_busy is async and .*<lambda> is not: nothing would await"):
            recipe(lambda: None)


def test_async_callable_on_a_class_based_view_follows_its_handlers(name: str, rf: Any) -> None:
    """Whether the view is async is known at the call only; so is that of ``method_decorator``."""
    decorator = method_decorator(advisory_lock(name, using="memory", timeout=0, on_busy=abusy), name="dispatch")

    @decorator
    class Async(View):
        async def get(self, request: Any) -> Any:
            return "worked"

    @decorator
    class Plain(View):
        def get(self, request: Any) -> Any:
            raise AssertionError("entered")

    with held_elsewhere(name):
        assert asyncio.run(Async.as_view()(rf.get("/"))) == "busy"
    with pytest.raises(TypeError, match=r"^on_busy is async and .* is not"):
        Plain.as_view()(rf.get("/"))
    assert is_free(name)
