"""``@idempotent`` and ``@idempotency_exempt``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import HttpRequest

from django_distlock.concurrency.flow import in_task, run
from django_distlock.storage.transactions import in_transaction
from django_distlock.validation import refuse_registered

from .atomic import exactly_once
from .conf import atomic_requests, config
from .decisions import SAFE_METHODS
from .execution import blocking, claim, end, enter, finish, free, state_of
from .handle import Idempotency, KeyedRequest
from .http.disconnect import finish_despite_disconnect
from .http.requests import has_no_key
from .http.waiting_page import is_outcome_request, outcome
from .options import ATTRIBUTE, EXEMPT, NAMES, PLAIN, OnCrash, OnStoreError, Options

F = TypeVar("F", bound=Callable[..., Any])
# The aliases of exactly-once views, for the system check.
atomic_aliases: set[str | bool] = set()


@dataclass(slots=True)
class Imported:
    """Which decorated views this process has imported so far: any, and any with the option ``key``."""

    views: bool = False
    key_callables: bool = False


imported = Imported()


def idempotency_exempt(view: F) -> F:
    """Ignore the keys of requests to this view."""

    @functools.wraps(view)
    def exempt(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    if iscoroutinefunction(view):
        markcoroutinefunction(exempt)
    setattr(exempt, EXEMPT, True)
    return exempt  # type: ignore[return-value]


@overload
def idempotent(view: F, /) -> F: ...
@overload
def idempotent(
    *,
    required: bool = ...,
    atomic: bool | str = ...,
    ttl: float | None = ...,
    claim_ttl: float | None = ...,
    wait: float | None = ...,
    fingerprint_exclude: Collection[str] = ...,
    on_crash: OnCrash | None = ...,
    on_store_error: OnStoreError | None = ...,
    key: Callable[[Any], str | None] | None = ...,
    anonymous: bool = ...,
    scope: Callable[[Any], str] | None = ...,
    fingerprint: Callable[[Any], str | bytes] | None = ...,
    replay_to_credentials: bool | None = ...,
) -> Callable[[F], F]: ...
def idempotent(view: Any = None, /, **options: Any) -> Any:
    """Let requests to this view that have the same key act once.

    Works with and without arguments, on functions, ``async def``, and, by ``method_decorator``, on ``dispatch`` or a
    handler of a class.

    :param required: a request without a key is refused with 400.
    :param atomic: exactly once: claim, view and stored answer are one transaction, of the database that holds the keys
        (True) or of another alias. It covers only what the view writes to that database. Sync views only.
    :param ttl: seconds that an answer is stored (24 hours).
    :param claim_ttl: seconds until the claim of a dead process ends; it is renewed while the view runs (30).
    :param wait: seconds that a duplicate waits for the first request (0; 2 for a form).
    :param fingerprint_exclude: names of fields that may differ when the same request is sent again.
    :param on_crash: what happens if the process died during the first request. "hold", the default, answers 409 until
        an operator releases the key or its lifetime ends. "retry" runs the view again, for views that may run twice. A
        callable ``(request, record)`` returns one of the two, or an HttpResponse that becomes the stored answer. With
        ``atomic`` a crash leaves nothing behind.
    :param on_store_error: "closed" answers 503 if the store of keys is down, "open" runs the view unprotected.
    :param key: a callable that takes the request and returns its key, or None; for webhooks with an id in their data.
    :param anonymous: accept the header also from clients without user and credential.
    :param scope: a callable that takes the request and returns the name of the tenant, which replaces the host: the
        keys of two tenants are separate.
    :param fingerprint: a callable that takes the request and returns a str or bytes to compare in place of the body, if
        the body is too large to be compared, or has been read already.
    :param replay_to_credentials: give stored answers to an ``Authorization`` that nothing has checked before this
        decorator. False, the default, answers 409 instead: the credential may be revoked by now.

    The decorators above this one are called before a stored answer is given.

    Raises TypeError or ValueError for a wrong option, and TypeError for ``atomic`` on an async view.
    """
    unknown = [name for name in options if name not in NAMES]
    if unknown:
        raise TypeError(f"@idempotent has no option {unknown[0]!r}. Options: {', '.join(NAMES)}.")
    chosen = Options(**options)
    return functools.partial(_decorate, chosen) if view is None else _decorate(chosen, view)


def _decorate(options: Options, view: Any) -> Any:
    if isinstance(view, type):
        raise TypeError("Decorate dispatch or a handler of the class: @method_decorator(idempotent, name='dispatch').")
    refuse_registered(view, "@idempotent")
    if not callable(view):
        raise TypeError(f"@idempotent decorates a view, not {type(view).__name__}.")
    is_async = iscoroutinefunction(view)
    if options.atomic:
        if is_async:
            raise TypeError("atomic=True needs a sync view: Django's transactions are not for async code.")
        atomic_aliases.add(options.atomic)
    imported.views = True
    imported.key_callables |= options.key is not None

    @functools.wraps(view)
    def idempotent_view(*args: Any, **kwargs: Any) -> Any:
        request, call = request_of(args), functools.partial(view, *args, **kwargs)
        answering = _answering(request, options, view, call)
        if answering is None:
            return _without_half_commit(request, call())
        return _finished(request, options, answering) if _is_awaited(view, args) else run(answering)

    @functools.wraps(view)
    async def async_idempotent_view(*args: Any, **kwargs: Any) -> Any:
        request, call = request_of(args), functools.partial(view, *args, **kwargs)
        answering = _answering(request, options, view, call)
        return await (call() if answering is None else _finished(request, options, answering))

    wrapper: Any = async_idempotent_view if is_async else idempotent_view
    setattr(wrapper, ATTRIBUTE, options)
    with suppress(Exception):  # django-ninja looks up names of annotations in the module of the wrapper
        wrapper.__signature__ = inspect.signature(wrapper, eval_str=True)
    return wrapper


def request_of(args: tuple[Any, ...]) -> HttpRequest:
    """The request that a view, a method or a DRF view was called with."""
    for value in args[:2]:
        if isinstance(value, HttpRequest):
            return value
        if isinstance(inner := getattr(value, "_request", None), HttpRequest):
            return inner
    raise TypeError("@idempotent decorates views: no request was found in the arguments.")


def _answering(
    request: HttpRequest, options: Options, view: Any, call: Callable[[], Any]
) -> Coroutine[Any, Any, Any] | None:
    """What is done with this request; None: only call the view."""
    if request.method in SAFE_METHODS:
        return seen(request, call) if is_outcome_request(request) else None
    state = state_of(request)
    if options.atomic:
        _refuse_claimed(state)
    elif _is_handled(state, options):
        return None if state.answering is None else blocking(state.answering)
    else:
        _refuse_open_transaction()
    return once(request, options, view, call)


def _is_awaited(view: Any, args: tuple[Any, ...]) -> bool:
    """Is the answer of this sync function awaited, as that of ``dispatch`` of an async class is?"""
    while isinstance(view, functools.partial) or hasattr(view, "__wrapped__"):
        view = view.func if isinstance(view, functools.partial) else view.__wrapped__
    return bool(getattr(getattr(view, "__self__", args[0]), "view_is_async", False))


async def _finished(request: HttpRequest, options: Options, answering: Coroutine[Any, Any, Any]) -> Any:
    state = state_of(request)
    # the middleware finishes the request, or there is nothing to finish
    if state.options is not None or request.method in SAFE_METHODS or has_no_key(request, options):
        return await answering
    return await finish_despite_disconnect(answering, lambda: state.begun)


def _is_handled(state: Idempotency, options: Options) -> bool:
    """Has the middleware claimed the key, or found its answer? ImproperlyConfigured if it did not see the options."""
    if state.options is None:  # no middleware, exempt, or a view that claims the key itself
        return state.attempt is not None and state.attempt.running
    # PLAIN: the middleware has seen no decorator, and would answer before the decorators above are called
    if state.options is PLAIN or (state.options is not options and state.options != options):
        raise ImproperlyConfigured(
            "The IdempotencyMiddleware did not see the options of @idempotent: a decorator above it, or a method that "
            "overrides the decorated one, hides them. Put @idempotent on top, or use functools.wraps in that decorator."
        )
    if state.attempt is not None:
        state.attempt.reached = True
    return True


async def once(
    request: HttpRequest, options: Options, view: Any, call: Callable[[], Any], *, vouched: bool = False
) -> Any:
    """Claim the key, call the view and store its answer; or give the answer that replaces the view's."""
    attempt = await enter(request, options, view)
    if attempt is None:
        return await _called(call)
    if not isinstance(attempt, KeyedRequest):
        return attempt
    state = state_of(request)
    state.begun, attempt.vouched = True, vouched
    if attempt.alias is not None:
        return await blocking(exactly_once, attempt, state, call)
    if (answering := await claim(attempt)) is not None:
        return await blocking(answering)
    state.attempt = attempt
    try:
        response = await _called(call)
    except Exception:
        await free(attempt)
        raise
    except BaseException:  # otherwise the claim would be renewed as long as the process lives
        end(attempt)
        raise
    await finish(attempt, response)
    return response


async def seen(request: HttpRequest, call: Callable[[], Any]) -> Any:
    """The outcome that the waiting page asks for, else the answer of the view."""
    found = await outcome(request)
    return await _called(call) if found is None else found


async def _called(call: Callable[[], Any]) -> Any:
    """Call the view; for a task await what it returns."""
    found = call()
    return await found if in_task() and inspect.isawaitable(found) else found


def _without_half_commit(request: HttpRequest, response: Any) -> Any:
    """Under ATOMIC_REQUESTS, roll back what the view wrote if it returns a 5xx, which also frees the key."""
    if request.method not in SAFE_METHODS and getattr(response, "status_code", 0) >= 500:
        for alias in atomic_requests():
            if connections[alias].in_atomic_block:
                transaction.set_rollback(True, using=alias)
    return response


def _refuse_open_transaction() -> None:
    if config().storage == "database" and in_transaction(config().database):
        raise ImproperlyConfigured(
            "Other requests do not see a claim that is made in a transaction: add the IdempotencyMiddleware, or use "
            "@idempotent(atomic=True)."
        )


def _refuse_claimed(state: Idempotency) -> None:
    # an attempt that has ended is an earlier one: a decorator above has called the view again
    running = state.attempt is not None and state.attempt.running
    if running or (state.options is not None and not state.options.atomic):
        raise ImproperlyConfigured(
            "The IdempotencyMiddleware did not see that this view is @idempotent(atomic=True): a decorator above "
            "hides it. Put @idempotent on top, or use functools.wraps in that decorator."
        )
