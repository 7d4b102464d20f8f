"""``@idempotent`` and ``@idempotency_exempt``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import HttpRequest

from django_distlock.concurrency.flow import arun, run

from .atomic import exactly_once, in_transaction
from .conf import atomic_requests, config
from .decisions import SAFE_METHODS
from .execution import enter, finish, free, leave, start
from .handle import Attempt, Idempotency
from .http.disconnect import to_the_end
from .http.waiting_page import is_asked, look
from .options import ATTRIBUTE, EXEMPT, NAMES, PLAIN, OnCrash, OnStoreError, Options

if TYPE_CHECKING:
    from .handle import Answering

F = TypeVar("F", bound=Callable[..., Any])
# The aliases of exactly-once views, for the system check.
atomic_aliases: set[str | bool] = set()


def idempotency_exempt(view: F) -> F:
    """This view is left alone, whatever keys its requests have."""

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
    """Requests of this view with the same key act once. Works with and without arguments, on functions, ``async def``,
    and, by ``method_decorator``, on ``dispatch`` or a handler of a class.

    :param required: a request without a key is refused with 400.
    :param atomic: exactly once: claim, view and stored answer are one transaction, of the database that holds the keys
        (True) or of another alias. Only what the view writes to that database is covered. Sync views only.
    :param ttl: seconds that an answer is kept (24 hours).
    :param claim_ttl: seconds until the claim of a process that died is up; renewed while the view runs (30).
    :param wait: seconds that a duplicate waits for the first request (0; 2 for a form).
    :param fingerprint_exclude: names of fields that may differ between two sendings of one request.
    :param on_crash: what happens when the first request died in its midst: "hold" (as it is without) answers 409 until
        somebody frees the key or its lifetime ends; "retry" runs the view again, for views that may run twice; a
        callable ``(request, record)`` looks for itself and returns one of the two, or an HttpResponse that becomes the
        stored answer. With ``atomic`` the question does not arise.
    :param on_store_error: "closed" answers 503 if the store of keys is down, "open" runs the view unprotected.
    :param key: a callable that takes the request and returns its key, or None; for webhooks that have an id of their
        own.
    :param anonymous: take the header from clients that nobody knows too.
    :param scope: a callable that takes the request and returns the name of the tenant, in place of the host: keys of
        two tenants never meet.
    :param fingerprint: a callable that takes the request and returns what stands for its body (str or bytes), where
        the body is too large to be compared, or has been read by then.
    :param replay_to_credentials: give stored answers to an ``Authorization`` that nothing has checked before this
        decorator. False, as it is without, answers 409 instead: the credential may be revoked by now.

    What stands above this decorator is asked before anything is told of an earlier request.

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
    """Has the middleware claimed the key, or found its answer? ImproperlyConfigured if it could not see the options."""
    state: Idempotency | None = getattr(request, "idempotency", None)
    if state is None:
        request.idempotency = Idempotency()  # type: ignore[attr-defined]
        return False
    if state.options is None:  # exempt, or a view that does it itself
        return state.attempt is not None and state.attempt.running
    # PLAIN: it has seen no decorator at all, and would answer before those above have been asked
    if state.options is PLAIN or (state.options is not options and state.options != options):
        raise ImproperlyConfigured(
            "The IdempotencyMiddleware did not see the options of @idempotent: a decorator above it, or a method that "
            "overrides the decorated one, hides them. Put @idempotent on top, or use functools.wraps in that decorator."
        )
    if state.attempt is not None:
        state.attempt.reached = True
    return True


def _answering(request: HttpRequest) -> Answering | None:
    """What makes the answer that the middleware has found."""
    state: Idempotency = request.idempotency  # type: ignore[attr-defined]
    return state.answering  # it stays: a decorator above may call the view again, which must not run then


def _sync_wrapper(options: Options, view: Any) -> Any:
    @functools.wraps(view)
    def idempotent_view(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        if request.method in SAFE_METHODS:
            if is_asked(request):
                return _now_or_awaited(request, functools.partial(_outcome, request, view, args, kwargs))
            return view(*args, **kwargs)
        if _is_handled(request, options):
            answering = _answering(request)
            return (
                _without_half_commit(view, args, kwargs) if answering is None else _now_or_awaited(request, answering)
            )
        _refuse_open_transaction()
        if (answer := run(start(request, options, view))) is not None:
            return answer
        attempt: Attempt | None = request.idempotency.attempt  # type: ignore[attr-defined]
        if attempt is None:
            return view(*args, **kwargs)
        with freeing(attempt):
            response = view(*args, **kwargs)
            if inspect.isawaitable(response):
                return _afinish(attempt, response)
        run(finish(attempt, response))
        return response

    return idempotent_view


def _now_or_awaited(request: HttpRequest, step: Callable[[], Any]) -> Any:
    """What blocks, from a function whose result may be awaited: ``dispatch`` of an async class."""
    match = request.resolver_match
    return _awaited(step) if match is not None and iscoroutinefunction(match.func) else step()


async def _awaited(step: Callable[[], Any]) -> Any:
    found = await sync_to_async(step)()
    return await found if inspect.isawaitable(found) else found


def _outcome(request: HttpRequest, view: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the waiting page asks for, else what the view says."""
    seen = run(look(request))
    return view(*args, **kwargs) if seen is None else seen


@contextmanager
def freeing(attempt: Attempt) -> Iterator[None]:
    """Nobody above us would: without it the claim is renewed for as long as the process lives."""
    try:
        yield
    except Exception:
        run(free(attempt))
        raise
    except BaseException:
        leave(attempt)
        raise


async def _afinish(attempt: Attempt, awaitable: Any) -> Any:
    try:
        response = await awaitable
    except Exception:
        await arun(free(attempt))
        raise
    except BaseException:
        leave(attempt)
        raise
    await arun(finish(attempt, response))
    return response


def _async_wrapper(options: Options, view: Any) -> Any:
    @functools.wraps(view)
    async def idempotent_view(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        if request.method in SAFE_METHODS:
            seen = await arun(look(request)) if is_asked(request) else None
            return await view(*args, **kwargs) if seen is None else seen
        if _is_handled(request, options):
            answering = _answering(request)
            return await (view(*args, **kwargs) if answering is None else sync_to_async(answering)())
        return await to_the_end(_answer(request, options, view, args, kwargs), lambda: request.idempotency.begun)  # type: ignore[attr-defined]

    return idempotent_view


async def _answer(
    request: HttpRequest, options: Options, view: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if (answer := await arun(start(request, options, view))) is not None:
        return answer
    attempt: Attempt | None = request.idempotency.attempt  # type: ignore[attr-defined]
    return await (view(*args, **kwargs) if attempt is None else _afinish(attempt, view(*args, **kwargs)))


def _without_half_commit(view: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view that returns a 5xx gives its key back; under ATOMIC_REQUESTS its writes are rolled back with it."""
    response = view(*args, **kwargs)
    if getattr(response, "status_code", 0) >= 500:
        for alias in atomic_requests():
            if connections[alias].in_atomic_block:
                transaction.set_rollback(True, using=alias)
    return response


def _refuse_open_transaction() -> None:
    if config().storage == "database" and in_transaction(config().database):
        raise ImproperlyConfigured(
            "Inside a transaction nobody else sees the claim: add the IdempotencyMiddleware, or use "
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
            waiting = run(look(request)) if is_asked(request) else None
            return view(*args, **kwargs) if waiting is None else waiting
        attempt = run(enter(request, options, view))
        if attempt is None:
            return view(*args, **kwargs)
        if not isinstance(attempt, Attempt):
            return attempt
        return exactly_once(attempt, state, functools.partial(view, *args, **kwargs))

    return idempotent_view
