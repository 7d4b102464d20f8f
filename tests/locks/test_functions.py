"""A lock above functions, methods and async functions: it is held while the body runs, and however the call ends it is
free afterwards; the function is still known for what it is; and what it does when the lock is busy: raise, skip, or
hand over."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.utils.decorators import method_decorator
from django.views import View

from django_distlock import (
    BackendUnavailable,
    DeadlockDetected,
    Lock,
    LockLost,
    LockNotAcquired,
    LockNotHeld,
    LockTimeout,
    advisory_lock,
    break_lock,
    held_locks,
)
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.locks.elsewhere import held_elsewhere, is_free

if TYPE_CHECKING:
    from collections.abc import Callable


class Account:
    lock = advisory_lock("decorators:account", using="memory", timeout=0)
    method = lock(lambda self: "method")
    of_class = classmethod(lock(lambda cls: cls.__name__))
    static = staticmethod(lock(lambda: "static"))
    value = property(lock(lambda self: "value"))
    __call__ = lock(lambda self: "called")


class Savings(Account):
    def method(self) -> str:
        return "savings " + super().method()


CALLS: dict[str, Callable[[], Any]] = {
    "savings method": lambda: Savings().method(),
    "Savings": lambda: Savings.of_class(),
    "static": lambda: Account().static(),
    "value": lambda: Account().value,
    "called": lambda: Account()(),
    # callables that are no functions
    "3": lambda: str(Account.lock(len)("abc")),
    "cba": lambda: "".join(Account.lock(functools.partial(sorted, reverse=True))("abc")),
}


@pytest.mark.parametrize("result", CALLS)
def test_methods_of_every_kind(result: str) -> None:
    with held_elsewhere("decorators:account"), pytest.raises(LockNotAcquired):
        CALLS[result]()
    assert CALLS[result]() == result
    assert is_free("decorators:account")


def break_it() -> None:
    (report,) = held_locks("memory")
    (info,) = report.locks
    assert break_lock(info, reason="test")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_r14_r16_exception_of_the_body_passes_and_the_lock_is_free(error: type[BaseException], name: str) -> None:
    """Also if the lock was lost meanwhile."""

    @advisory_lock(name, using="memory", timeout=0)
    def fails(lose: bool) -> None:
        if lose:
            break_it()
        raise error("the body's own")

    for lose in (False, True):
        with pytest.raises(error, match="the body's own"):
            fails(lose)
        eventually(lambda: is_free(name), "it is not released")  # after GeneratorExit by another thread


def in_except_block(call: Callable[[], Any]) -> Any:
    try:
        raise KeyError("earlier")
    except KeyError:
        return call()


def test_r17_lost_lock_is_told_instead_of_the_result(name: str) -> None:
    """Also when the call comes from an except block: that exception is none of the lock's."""
    lock = advisory_lock(name, using="memory", timeout=0)
    works = lock(break_it)

    @lock
    async def aworks() -> None:
        break_it()

    for call in (works, lambda: asyncio.run(aworks()), lambda: in_except_block(works)):
        with pytest.raises(LockLost):
            call()


# To inspect, pickle, copy and Django it is the function that was decorated.

LOCK = advisory_lock("decorators:wrapping:{pk}", using="memory", timeout=0)


@LOCK
def settle(pk: int, *, note: str = "none") -> str:
    """Settle an account."""
    return f"{pk} {note} {is_free(f'decorators:wrapping:{pk}')}"


@LOCK
async def asettle(pk: int, *, note: str = "none") -> str:
    """Settle an account."""
    return f"{pk} {note}"


@pytest.mark.parametrize("function", [settle, asettle])
def test_what_it_is_asked_is_what_the_function_would_say(function: Any) -> None:
    assert (function.__doc__, function.__module__) == ("Settle an account.", __name__)
    assert function.__qualname__ == function.__name__
    assert str(inspect.signature(function)) == "(pk: 'int', *, note: 'str' = 'none') -> 'str'"
    assert inspect.iscoroutinefunction(function) == (function is asettle)
    # pickled by name, as Celery, multiprocessing and django.tasks send it
    assert pickle.loads(pickle.dumps(function)) is copy.deepcopy(function) is function  # noqa: S301 - made here


def test_a_recipe_that_is_copied_or_pickled_says_the_same_and_has_no_open_block(name: str) -> None:
    lock = Lock(name, using="memory", timeout=0, ttl=5, on_busy="raise")
    with lock:
        for other in (copy.copy(lock), copy.deepcopy(lock), pickle.loads(pickle.dumps(lock))):  # noqa: S301 - made here
            assert vars(other) == vars(Lock(name, using="memory", timeout=0, ttl=5, on_busy="raise"))
            with pytest.raises(LockNotHeld, match="was not entered by this context"):
                other.__exit__(None, None, None)
    assert is_free(name)


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
