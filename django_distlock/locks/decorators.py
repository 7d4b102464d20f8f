"""Locks as decorators: of functions, ``async def``, methods, and views with their transactions (R12)."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Literal, Protocol, Self, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.http import HttpRequest
from django.views import View

from django_distlock.concurrency import finalizers
from django_distlock.concurrency.origin import request_of_rest, serving
from django_distlock.manager import owner
from django_distlock.validation import qualified_name, refuse_registered

from .lazy_results import finished, makes_manager, refuse_unfinished
from .name_templates import Template

F = TypeVar("F", bound=Callable[..., Any])
OnBusy = Literal["raise", "skip"] | Callable[..., Any]


class Recipe(Protocol):
    """The part of a Lock, LockSet or Semaphore that the decorator uses."""

    timeout: Any
    cancel_on_loss: bool

    def templates(self) -> tuple[str, ...]: ...
    def formatted(self, values: Mapping[str, str]) -> Self: ...
    def acquire(self) -> Any: ...
    def try_acquire(self, timeout: Any) -> Any: ...
    async def aacquire(self) -> Any: ...
    async def atry_acquire(self, timeout: Any) -> Any: ...


def validate_on_busy(on_busy: object) -> Any:
    """Return ``on_busy`` if it is "raise", "skip" or a callable; else raise ValueError or TypeError."""
    if on_busy in ("raise", "skip") or callable(on_busy):
        return on_busy
    kind = ValueError if isinstance(on_busy, str) else TypeError
    raise kind(f'on_busy must be "raise", "skip" or a callable, not {on_busy!r}.')


# The code of Django's non_atomic_requests that excludes an alias; its argument ``view`` is read from its frame.
_TAKES_OUT = getattr(getattr(transaction, "_non_atomic_requests", None), "__code__", None)


class LockedView(set[str]):
    """``_non_atomic_requests`` of a locked view: Django opens no transaction around it, the innermost lock does.

    Django asks whether an alias is *in* this set; the answer is always yes. The elements are the aliases that the code
    of the view has excluded with ``non_atomic_requests``; ``of_class`` has those of class-based views.
    """

    def __init__(self, other: Iterable[str] = ()) -> None:
        super().__init__(other)
        self.of_class: dict[type, frozenset[str]] = dict(getattr(other, "of_class", {}))

    def __contains__(self, alias: object) -> bool:
        return True

    def add(self, alias: str) -> None:
        """Exclude ``alias`` for the view that ``non_atomic_requests`` decorates.

        ``functools.wraps`` lets several views share one set, so this view gets its own copy. ``method_decorator`` makes
        a new wrapper for each request, which no other code sees, so there the alias is stored by class.
        """
        frame = sys._getframe(1)
        view = frame.f_locals["view"] if frame.f_code is _TAKES_OUT else None
        instance = getattr(view.func, "__self__", None) if isinstance(view, functools.partial) else None
        if isinstance(instance, View):
            kind = type(instance)
            self.of_class[kind] = self.of_class.get(kind, frozenset()) | {alias}
        elif view is None:
            super().add(alias)
        else:
            own = LockedView(self)
            set.add(own, alias)
            view._non_atomic_requests = own

    def taken_out(self, view: Any) -> set[str]:
        """The aliases for which no transaction is opened around ``view``."""
        kind: Any = getattr(view, "view_class", None) or getattr(view, "cls", None)
        return {*self, *self.of_class.get(kind, ())}


def decorate(lock: Recipe, function: F, on_busy: OnBusy) -> F:
    """Wrap ``function`` so that each call holds ``lock``."""
    refuse(function)
    if not (is_async(function) or _may_be_async(function)):
        if lock.cancel_on_loss:
            refuse_cancel_on_loss()
        _refuse_async_on_busy(function, on_busy)
    template = Template(lock.templates(), function)
    lock = lock.formatted({})  # a copy that remembers the name as it is written here
    if is_async(function):
        return _decorate_async(lock, function, template, on_busy)
    inner = getattr(function, "_non_atomic_requests", ())
    innermost = not isinstance(inner, LockedView)
    dispatches = getattr(function, "__name__", "") == "dispatch"

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        if request is None and (served := request_of_rest(args)) is None:
            return held(None, *args, **kwargs)
        with serving(request or served):
            return held(request, *args, **kwargs)

    def held(request: HttpRequest | None, /, *args: Any, **kwargs: Any) -> Any:
        excluded: LockedView = locked._non_atomic_requests  # type: ignore[attr-defined]
        run = functools.partial(finished, function)
        call = functools.partial(call_view, run, request if innermost else None, excluded)
        if dispatches and request is not None and is_async_dispatch(function, args):
            recipe = _recipe(lock, template, args, kwargs)
            return _held_async(recipe, function, call, args, kwargs, on_busy)
        if dispatches:
            _refuse_async_on_busy(function, on_busy)
        recipe = _recipe(lock, template, args, kwargs)
        if owner.on_event_loop():
            _refuse_event_loop(function)
        lease = recipe.try_acquire(recipe.timeout) if on_busy != "raise" else recipe.acquire()
        if lease is None:
            return call_view(on_busy, request, excluded, *args, **kwargs) if callable(on_busy) else None
        return _run(lease, function, call, args, kwargs)

    locked._non_atomic_requests = LockedView(inner)  # type: ignore[attr-defined]
    note_template(locked, template)
    return locked  # type: ignore[return-value]


def refuse_cancel_on_loss() -> None:
    """Raise TypeError: a thread cannot be cancelled."""
    raise TypeError(
        "cancel_on_loss belongs to `async with` and to the decorator of an `async def`: only a task can be cancelled. "
        "Ask lease.ensure_held(), or register lease.on_lost()."
    )


def _refuse_async_on_busy(function: Callable[..., Any], on_busy: OnBusy) -> None:
    if callable(on_busy) and is_async(on_busy):
        name = qualified_name(function)
        raise TypeError(
            f"on_busy is async and {name} is not: nothing would await what on_busy returns. Make on_busy a plain "
            "function, or the decorated one an `async def`."
        )


def _may_be_async(function: Any) -> bool:
    """Is it known only at the call whether ``function`` is async?

    A ``dispatch`` may be either, and ``method_decorator`` first applies a decorator to a dummy function of Django's.
    """
    if getattr(function, "__name__", "") == "dispatch":
        return True
    return getattr(function, "__module__", "") == "django.utils.decorators"


def is_async(function: Any) -> bool:
    """Is the result of a call certainly an awaitable?

    The wrapped function does not decide that: ``async_to_sync`` wraps an async one.
    """
    while isinstance(function, functools.partial) and not iscoroutinefunction(function):
        function = function.func
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def _refuse_event_loop(function: Callable[..., Any]) -> None:
    """Raise SynchronousOnlyOperation: waiting would block the loop, and with it a holder that runs on the same loop."""
    if not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        name = qualified_name(function)
        raise SynchronousOnlyOperation(
            f"{name} is not known to be async, so its lock would block the event loop. Call it in a thread "
            "(sync_to_async). If it gives an awaitable, make it an `async def` or mark it with "
            "asgiref.sync.markcoroutinefunction below the lock."
        )


def _run(
    lease: Any, function: Callable[..., Any], call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    try:
        result = call(*args, **kwargs)
    except BaseException as error:
        lease.__exit__(type(error), error, None)  # so that the exception of the body is raised
        raise
    if inspect.isawaitable(result):
        return _Awaited(lease, function, result)
    lease.__exit__(None, None, None)  # the call may stand in an except block, whose exception is unrelated
    return result


async def _awaited(lease: Any, function: Callable[..., Any], result: Awaitable[Any]) -> Any:
    async with lease:
        return refuse_unfinished(function, await result)


class _Awaited(Coroutine[Any, Any, Any]):
    """Awaits the result of a plain function while the lock is held that the call has acquired.

    A coroutine that was never started runs no ``finally`` when it is cancelled, closed or dropped. This one is started
    at once, so that the lock is released even then (R7).
    """

    def __init__(self, lease: Any, function: Callable[..., Any], result: Awaitable[Any]) -> None:
        self._result = result
        self._steps = self._run(lease, function, result)
        next(self._steps)

    @staticmethod
    def _run(lease: Any, function: Callable[..., Any], result: Awaitable[Any]) -> Generator[Any, Any, Any]:
        try:
            yield
        except BaseException as error:
            finalizers.now_or_later(lease._release, False)
            # as for any coroutine: no warning after a cancellation, "was never awaited" after it was dropped
            if not isinstance(error, GeneratorExit) and inspect.iscoroutine(result):
                result.close()
            raise
        return (yield from _awaited(lease, function, result).__await__())

    def send(self, value: Any) -> Any:
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        return self._steps.throw(*error)

    def close(self) -> None:
        self._steps.close()
        if inspect.iscoroutine(self._result):
            self._result.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._steps


async def _held_async(
    recipe: Recipe,
    function: Callable[..., Any],
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    on_busy: OnBusy,
) -> Any:
    with serving(request_of(args)):
        lease = await recipe.aacquire() if on_busy == "raise" else await recipe.atry_acquire(recipe.timeout)
        if lease is None:
            result = on_busy(*args, **kwargs) if callable(on_busy) else None
            return await result if inspect.isawaitable(result) else result
        async with lease:
            result = call(*args, **kwargs)
            return refuse_unfinished(function, await result if inspect.isawaitable(result) else result)


def _decorate_async(lock: Recipe, function: F, template: Template, on_busy: OnBusy) -> F:
    @functools.wraps(function)
    async def locked(*args: Any, **kwargs: Any) -> Any:
        recipe = _recipe(lock, template, args, kwargs)
        return await _held_async(recipe, function, function, args, kwargs, on_busy)

    note_template(locked, template)
    return markcoroutinefunction(locked)  # type: ignore[return-value]


def note_template(locked: Any, template: Template) -> None:
    """Store ``template`` for the system check of routes; ``method_decorator`` and ``as_view`` copy it to the view."""
    locked._distlock_templates = (*getattr(locked, "_distlock_templates", ()), template)


def _recipe(lock: Recipe, template: Template, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe:
    values = template.fill(args, kwargs)
    return lock.formatted(values) if values else lock


def request_of(args: tuple[Any, ...]) -> HttpRequest | None:
    """The request of a view: its first argument, or the second of a method."""
    for argument in args[:2]:
        if isinstance(argument, HttpRequest):
            return argument
    return None


def _resolved_view(request: HttpRequest) -> Any:
    match = getattr(request, "resolver_match", None)
    return None if match is None else match.func


def is_async_dispatch(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Must this ``dispatch`` return an awaitable?

    The class-based view decides: it is the first argument, or ``method_decorator`` has bound it. A running event loop
    is no sign, because a WSGI handler calls an async view before it starts one.
    """
    inner = inspect.unwrap(function, stop=lambda f: isinstance(f, functools.partial))
    view = getattr(inner.func, "__self__", None) if isinstance(inner, functools.partial) else args[0]
    return bool(getattr(view, "view_is_async", False))


def call_view(
    function: Callable[..., Any], request: HttpRequest | None, excluded: LockedView, /, *args: Any, **kwargs: Any
) -> Any:
    """Call ``function`` inside the transactions of ATOMIC_REQUESTS that Django has not opened for a locked view.

    The view that Django resolved decides, not this wrapper: ``method_decorator`` makes a new wrapper for each request,
    and a plain call by other code opens no transaction. ``excluded`` are the aliases excluded between two decorators,
    which ``method_decorator`` does not show on the view.
    """
    view = None if request is None else _resolved_view(request)
    marker = getattr(view, "_non_atomic_requests", None)
    if not isinstance(marker, LockedView):
        return function(*args, **kwargs)
    out = marker.taken_out(view) | excluded.taken_out(view)
    with ExitStack() as stack:
        for alias, settings in connections.settings.items():
            if settings["ATOMIC_REQUESTS"] and alias not in out and not _is_atomic(alias):
                if iscoroutinefunction(view):
                    raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")  # Django's own words
                stack.enter_context(transaction.atomic(using=alias))
        return function(*args, **kwargs)


def _is_atomic(alias: str) -> bool:
    """Is a transaction open, other than the one around a TestCase?"""
    connection = connections[alias]
    blocks: Any = connection.atomic_blocks
    return connection.in_atomic_block and not (blocks and blocks[-1]._from_testcase)


def refuse(function: object, lock: str = "advisory_lock") -> None:
    """Raise TypeError for an object that a decorator cannot protect."""
    name = qualified_name(function)
    if inspect.isclass(function):
        raise TypeError(
            f"{name} is a class; use @method_decorator({lock}(...), name='dispatch') on a class-based view."
        )
    if isinstance(function, (classmethod, staticmethod, property)):
        raise TypeError(f"Put @{type(function).__name__} above the lock, not below it.")
    refuse_registered(function)
    if not callable(function):
        raise TypeError(f"A lock decorates a callable, not {type(function).__name__}; did you mean `with`?")
    called = (function, type(function).__call__)
    if any(inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body) for body in called):
        raise TypeError(f"{name} is a generator: it would run after the lock is released. Use `with` inside it.")
    if makes_manager(function):
        raise TypeError(
            f"{name} makes a context manager: it would run after the lock is released. Use `with` inside it."
        )
