"""Locks as decorators: of functions, ``async def``, methods, and views with their transactions (R12)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from typing import Any, Literal, TypeVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.db import connections, transaction
from django.http import HttpRequest

from django_distlock.concurrency.origin import request_of_rest, serving
from django_distlock.manager import owner
from django_distlock.validation import Timeout, qualified_name, refuse_registered

from .lazy_results import refuse_unfinished
from .name_templates import Template, signature_of

F = TypeVar("F", bound=Callable[..., Any])
OnBusy = Literal["raise", "skip"] | Callable[..., Any]


def validate_on_busy(on_busy: object) -> Any:
    """Return ``on_busy`` if it is "raise", "skip" or a callable; else raise ValueError or TypeError."""
    if on_busy in ("raise", "skip") or callable(on_busy):
        return on_busy
    kind = ValueError if isinstance(on_busy, str) else TypeError
    raise kind(f'on_busy must be "raise", "skip" or a callable, not {on_busy!r}.')


class Recipe:
    """A Lock, lock_all or semaphore as a decorator. Subclasses have the methods."""

    timeout: Timeout
    on_busy: OnBusy = "raise"
    cancel_on_loss = False
    into: str | None = None
    acquire: Callable[..., Any]
    try_acquire: Callable[..., Any]
    aacquire: Callable[..., Any]
    atry_acquire: Callable[..., Any]
    templates: Callable[[], tuple[str, ...]]
    formatted: Callable[[Mapping[str, str]], Any]

    def __call__(self, function: F) -> F:
        """Decorate a function, a method, an ``async def`` or a view: each call holds the lock while it runs.

        The argument that ``into`` names gets the lease: callers leave it out, which types cannot express.
        """
        return decorate(self, function)


class LockedView(frozenset[str]):
    """``_non_atomic_requests`` of a locked view: Django opens no transaction around it, the innermost lock does.

    Django asks whether an alias is *in* this set; the answer is always yes. The elements are the aliases that the code
    of the view has excluded with ``non_atomic_requests``. Above the lock that finds no ``add()`` here, and gives its
    view a new set: this one is also that of each view that ``functools.wraps`` has made of the locked one.
    """

    def __contains__(self, alias: object) -> bool:
        return True


class LockedMethod(LockedView):
    """The same of a method. It is refused above the lock, where Django would give the new set to one bound method."""

    def add(self, alias: str) -> None:
        """What ``non_atomic_requests`` calls. TypeError."""
        raise TypeError(
            "non_atomic_requests stands above a locked dispatch(), which other views may share. Give both to one "
            "decorator: @method_decorator([transaction.non_atomic_requests, the lock], name='dispatch')."
        )


def open_no_transaction(locked: Any, function: Any) -> bool:
    """Have Django open no transaction around the view ``locked``, which calls ``function``. True if that is no locked
    view itself and none under an edit lock, so that ``locked`` has to open the transaction."""
    inner = getattr(function, "_non_atomic_requests", ())
    # what method_decorator makes for one request is a partial, and no other code sees its set
    of_method = _may_be_async(function) and not isinstance(function, functools.partial)
    locked._non_atomic_requests = LockedMethod(inner) if of_method else LockedView(inner)
    return "" not in inner  # no alias: a set that says yes to each is that of a view with transactions of its own


def decorate(lock: Recipe, function: F) -> F:
    """Wrap ``function`` so that each call holds ``lock``."""
    refuse(function)
    if not (is_async(function) or _may_be_async(function)):
        if lock.cancel_on_loss:
            refuse_cancel_on_loss()
        _refuse_async_on_busy(function, lock.on_busy)
    template = Template(lock.templates(), function, lock.into)
    lock = lock.formatted({})  # a copy that remembers the name as it is written here
    locked = (_decorate_async if is_async(function) else _decorate_sync)(lock, function, template)
    if lock.into is not None and lock.into in signature_of(function).parameters:
        locked.__signature__ = template.signature  # callers leave that argument out
    note_template(locked, template)
    return locked  # type: ignore[no-any-return]


def note_template(locked: Any, template: Template) -> None:
    """Store ``template`` for the system check of routes; ``method_decorator`` and ``as_view`` copy it to the view."""
    locked._distlock_templates = (*getattr(locked, "_distlock_templates", ()), template)


def _decorate_sync(lock: Recipe, function: Callable[..., Any], template: Template) -> Any:
    dispatches = getattr(function, "__name__", "") == "dispatch"
    body = functools.partial(_checked, function)

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        excluded = locked._non_atomic_requests  # type: ignore[attr-defined]
        with serving(request or request_of_rest(args)):
            recipe = _recipe(lock, template, args, kwargs)
            on_busy = recipe.on_busy
            if dispatches and request is not None and is_async_dispatch(function, args):
                call = functools.partial(call_view, function, request if innermost else None, excluded)
                return _held_async(recipe, function, call, args, kwargs)
            if dispatches:
                _refuse_async_on_busy(function, on_busy)
            if owner.on_event_loop():  # a wait would block it, and with it a holder that runs on the same loop
                owner.refuse_event_loop(f"async def {qualified_name(function)}")
            lease = recipe.acquire() if on_busy == "raise" else recipe.try_acquire(recipe.timeout)
            if lease is None:
                return call_view(on_busy, request, excluded, *args, **kwargs) if callable(on_busy) else None
            with lease:
                more = _given(recipe, lease)
                return call_view(body, request if innermost else None, excluded, *args, **kwargs, **more)

    innermost = open_no_transaction(locked, function)
    return locked


def _given(lock: Recipe, lease: Any) -> dict[str, Any]:
    """The argument that ``into`` names."""
    return {} if lock.into is None else {lock.into: lease}


def _checked(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call ``function`` and refuse a result whose code has yet to run."""
    result = function(*args, **kwargs)
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(
            f"{qualified_name(function)} returned an awaitable, which would run after the lock is released. Make it an "
            "`async def`, or mark it with asgiref.sync.markcoroutinefunction below the lock."
        )
    return refuse_unfinished(function, result)


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


async def _held_async(
    recipe: Recipe,
    function: Callable[..., Any],
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    with serving(request_of(args)):
        on_busy = recipe.on_busy
        lease = await recipe.aacquire() if on_busy == "raise" else await recipe.atry_acquire(recipe.timeout)
        if lease is None:
            result = on_busy(*args, **kwargs) if callable(on_busy) else None
            return await result if inspect.isawaitable(result) else result
        async with lease:
            result = call(*args, **kwargs, **_given(recipe, lease))
            return refuse_unfinished(function, await result if inspect.isawaitable(result) else result)


def _decorate_async(lock: Recipe, function: Callable[..., Any], template: Template) -> Any:
    @functools.wraps(function)
    async def locked(*args: Any, **kwargs: Any) -> Any:
        return await _held_async(_recipe(lock, template, args, kwargs), function, function, args, kwargs)

    return markcoroutinefunction(locked)


def _recipe(lock: Recipe, template: Template, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recipe:
    values = template.fill(args, kwargs)
    return lock.formatted(values) if values else lock


def request_of(args: tuple[Any, ...]) -> HttpRequest | None:
    """The request of a view: its first argument, or the second of a method."""
    for argument in args[:2]:
        if isinstance(argument, HttpRequest):
            return argument
    return None


def is_async_dispatch(function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Must this ``dispatch`` return an awaitable?

    The class-based view decides: it is the first argument, or ``method_decorator`` has bound it. A running event loop
    is no sign, because a WSGI handler calls an async view before it starts one.
    """
    inner = inspect.unwrap(function, stop=lambda f: isinstance(f, functools.partial))
    view = getattr(inner.func, "__self__", None) if isinstance(inner, functools.partial) else args[0]
    return bool(getattr(view, "view_is_async", False))


def call_view(
    function: Callable[..., Any], request: HttpRequest | None, excluded: Collection[str], /, *args: Any, **kwargs: Any
) -> Any:
    """Call ``function`` inside the transactions of ATOMIC_REQUESTS that Django has not opened for a locked view.

    The view that Django resolved decides, not this wrapper: ``method_decorator`` makes a new wrapper for each request,
    and a plain call by other code opens no transaction. ``excluded`` are the aliases excluded between two decorators,
    which ``method_decorator`` does not show on the view.
    """
    view = getattr(getattr(request, "resolver_match", None), "func", None)
    marker = getattr(view, "_non_atomic_requests", None)
    if not isinstance(marker, LockedView):
        return function(*args, **kwargs)
    out = {*marker, *excluded}
    opened: list[str] = []
    with ExitStack() as stack:
        for alias, settings in connections.settings.items():
            if settings["ATOMIC_REQUESTS"] and alias not in out and not _is_atomic(alias):
                if iscoroutinefunction(view):
                    raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")  # Django's own words
                stack.enter_context(transaction.atomic(using=alias))
                opened.append(alias)
        found = function(*args, **kwargs)
        if getattr(request, "_distlock_rolls_back_5xx", False) and getattr(found, "status_code", 0) >= 500:
            for alias in opened:
                transaction.set_rollback(True, using=alias)
        return found


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
