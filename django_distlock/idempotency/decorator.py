"""``@idempotent`` and ``@idempotency_exempt``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import HttpRequest

from django_distlock.concurrency.flow import arun, run

from .atomic import exactly_once, in_transaction
from .conf import atomic_requests, config
from .decisions import SAFE_METHODS
from .execution import end, enter, finish, free, start, state_of
from .handle import Idempotency, KeyedRequest
from .http.disconnect import finish_despite_disconnect
from .http.waiting_page import is_outcome_request, outcome
from .options import ATTRIBUTE, EXEMPT, NAMES, PLAIN, OnCrash, OnStoreError, Options

F = TypeVar("F", bound=Callable[..., Any])
# The aliases of exactly-once views, for the system check.
atomic_aliases: set[str | bool] = set()


def idempotency_exempt(view: F) -> F:
    """Ignore the keys of requests to this view."""

    @functools.wraps(view)
    def exempt(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    @functools.wraps(view)
    async def aexempt(*args: Any, **kwargs: Any) -> Any:
        return await view(*args, **kwargs)

    chosen: Any = aexempt if iscoroutinefunction(view) else exempt
    setattr(chosen, EXEMPT, True)
    return chosen  # type: ignore[no-any-return]


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
    if not callable(view):
        raise TypeError(f"@idempotent decorates a view, not {type(view).__name__}.")
    if iscoroutinefunction(view):
        if options.atomic:
            raise TypeError("atomic=True needs a sync view: Django's transactions are not for async code.")
        return _mark(_async_wrapper(options, view), options)
    if options.atomic:
        atomic_aliases.add(options.atomic)
        return _mark(_atomic_wrapper(options, view), options)
    return _mark(_sync_wrapper(options, view), options)


def _mark(wrapper: Any, options: Options) -> Any:
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


def _is_handled(request: HttpRequest, options: Options) -> bool:
    """Has the middleware claimed the key, or found its answer? ImproperlyConfigured if it did not see the options."""
    state: Idempotency | None = getattr(request, "idempotency", None)
    if state is None:
        request.idempotency = Idempotency()  # type: ignore[attr-defined]
        return False
    if state.options is None:  # exempt, or a view that claims the key itself
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


def _sync_wrapper(options: Options, view: Any) -> Any:
    @functools.wraps(view)
    def idempotent_view(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        if request.method in SAFE_METHODS:
            if is_outcome_request(request):
                return _call_or_awaitable(request, functools.partial(_outcome, request, view, args, kwargs))
            return view(*args, **kwargs)
        if _is_handled(request, options):
            answering = state_of(request).answering
            if answering is None:
                return _without_half_commit(view, args, kwargs)
            return _call_or_awaitable(request, answering)
        _refuse_open_transaction()
        if (answer := run(start(request, options, view))) is not None:
            return answer
        attempt = state_of(request).attempt
        if attempt is None:
            return view(*args, **kwargs)
        with freeing(attempt):
            response = view(*args, **kwargs)
            if inspect.isawaitable(response):
                return _afinish(attempt, response)
        run(finish(attempt, response))
        return response

    return idempotent_view


def _call_or_awaitable(request: HttpRequest, step: Callable[[], Any]) -> Any:
    """Call a function that blocks; below an async view (``dispatch`` of an async class) return an awaitable of it."""
    match = request.resolver_match
    return _awaited(step) if match is not None and iscoroutinefunction(match.func) else step()


async def _awaited(step: Callable[[], Any]) -> Any:
    found = await sync_to_async(step)()
    return await found if inspect.isawaitable(found) else found


def _outcome(request: HttpRequest, view: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The outcome that the waiting page asks for, else the answer of the view."""
    seen = run(outcome(request))
    return view(*args, **kwargs) if seen is None else seen


@contextmanager
def freeing(attempt: KeyedRequest) -> Iterator[None]:
    """Free the key if the view raises: otherwise the claim would be renewed as long as the process lives."""
    try:
        yield
    except Exception:
        run(free(attempt))
        raise
    except BaseException:
        end(attempt)
        raise


async def _afinish(attempt: KeyedRequest, awaitable: Any) -> Any:
    try:
        response = await awaitable
    except Exception:
        await arun(free(attempt))
        raise
    except BaseException:
        end(attempt)
        raise
    await arun(finish(attempt, response))
    return response


def _async_wrapper(options: Options, view: Any) -> Any:
    @functools.wraps(view)
    async def idempotent_view(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        if request.method in SAFE_METHODS:
            seen = await arun(outcome(request)) if is_outcome_request(request) else None
            return await view(*args, **kwargs) if seen is None else seen
        if _is_handled(request, options):
            answering = state_of(request).answering
            return await (view(*args, **kwargs) if answering is None else sync_to_async(answering)())
        answer = _answer(request, options, view, args, kwargs)
        return await finish_despite_disconnect(answer, lambda: state_of(request).begun)

    return idempotent_view


async def _answer(
    request: HttpRequest, options: Options, view: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if (answer := await arun(start(request, options, view))) is not None:
        return answer
    attempt = state_of(request).attempt
    return await (view(*args, **kwargs) if attempt is None else _afinish(attempt, view(*args, **kwargs)))


def _without_half_commit(view: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Under ATOMIC_REQUESTS, roll back what the view wrote if it returns a 5xx, which also frees the key."""
    response = view(*args, **kwargs)
    if getattr(response, "status_code", 0) >= 500:
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


def _atomic_wrapper(options: Options, view: Any) -> Any:
    @functools.wraps(view)
    def idempotent_view(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        state: Idempotency | None = getattr(request, "idempotency", None)
        if state is None:
            state = request.idempotency = Idempotency()  # type: ignore[attr-defined]
        # an attempt that has ended is an earlier one: a decorator above has called the view again
        running = state.attempt is not None and state.attempt.running
        if running or (state.options is not None and not state.options.atomic):
            raise ImproperlyConfigured(
                "The IdempotencyMiddleware did not see that this view is @idempotent(atomic=True): a decorator above "
                "hides it. Put @idempotent on top, or use functools.wraps in that decorator."
            )
        if request.method in SAFE_METHODS:
            waiting = run(outcome(request)) if is_outcome_request(request) else None
            return view(*args, **kwargs) if waiting is None else waiting
        attempt = run(enter(request, options, view))
        if attempt is None:
            return view(*args, **kwargs)
        if not isinstance(attempt, KeyedRequest):
            return attempt
        return exactly_once(attempt, state, functools.partial(view, *args, **kwargs))

    return idempotent_view
