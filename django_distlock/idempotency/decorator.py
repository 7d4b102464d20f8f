"""``@idempotent`` and ``@idempotency_exempt``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar, overload

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import HttpRequest

from django_distlock.concurrency.flow import in_task, run
from django_distlock.locks.decorators import call_view, is_async_dispatch, open_no_transaction
from django_distlock.storage.transactions import in_transaction
from django_distlock.validation import refuse_registered

from .atomic import exactly_once, is_left_to_middleware
from .conf import OnCrash, OnStoreError, options_of_view
from .decisions import SAFE_METHODS
from .execution import begin, claim, end, finish, in_thread, refuse_transaction, state_of
from .handle import Idempotency, KeyedRequest
from .http.disconnect import finish_despite_disconnect
from .http.requests import may_have_key
from .options import ATTRIBUTE, EXEMPT

F = TypeVar("F", bound=Callable[..., Any])
# The aliases of exactly-once views, for the system check.
atomic_aliases: set[str | bool] = set()


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
    given = options_of_view(options)
    return functools.partial(_decorate, given) if view is None else _decorate(given, view)


def _decorate(given: dict[str, Any], view: Any) -> Any:
    if isinstance(view, type):
        raise TypeError("Decorate dispatch or a handler of the class: @method_decorator(idempotent, name='dispatch').")
    refuse_registered(view, "@idempotent")
    if not callable(view):
        raise TypeError(f"@idempotent decorates a view, not {type(view).__name__}.")
    is_async = iscoroutinefunction(view)
    if atomic := given.get("atomic"):
        if is_async:
            raise TypeError("atomic=True needs a sync view: Django's transactions are not for async code.")
        atomic_aliases.add(atomic)
    wrapper = _async_view(given, view) if is_async else _sync_view(given, view)
    setattr(wrapper, ATTRIBUTE, True)
    with suppress(Exception):  # django-ninja looks up names of annotations in the module of the wrapper
        wrapper.__signature__ = inspect.signature(wrapper, eval_str=True)
    return wrapper


def _sync_view(given: dict[str, Any], view: Any) -> Any:
    """The view in the transactions of ATOMIC_REQUESTS, which begin after the claim, and end before the answer is
    stored."""

    @functools.wraps(view)
    def idempotent_view(*args: Any, **kwargs: Any) -> Any:
        request = request_of(args)
        if request.method not in SAFE_METHODS:
            request._distlock_rolls_back_5xx = True  # type: ignore[attr-defined]  # a lock below opens the transaction
        excluded = idempotent_view._non_atomic_requests  # type: ignore[attr-defined]
        body = functools.partial(_without_half_commit, request, view)
        call = functools.partial(call_view, body, request if opens else None, excluded, *args, **kwargs)
        if is_async_dispatch(view, args):
            return once(request, given, call)
        return run(once(request, given, call))

    opens = open_no_transaction(idempotent_view, view)
    return idempotent_view


def _async_view(given: dict[str, Any], view: Any) -> Any:
    @functools.wraps(view)
    async def idempotent_view(*args: Any, **kwargs: Any) -> Any:
        return await once(request_of(args), given, functools.partial(view, *args, **kwargs))

    return idempotent_view


def request_of(args: tuple[Any, ...]) -> HttpRequest:
    """The request that a view, a method or a DRF view was called with."""
    for value in args[:2]:
        if isinstance(value, HttpRequest):
            return value
        if isinstance(inner := getattr(value, "_request", None), HttpRequest):
            return inner
    raise TypeError("@idempotent decorates views: no request was found in the arguments.")


async def once(request: HttpRequest, given: Mapping[str, Any], call: Callable[[], Any]) -> Any:
    """Claim the key, call the view and store its answer; or give the answer that replaces the view's.

    In a task ``call`` gives an awaitable. A request without a key stays in its task.
    """
    state = state_of(request)
    if _is_left_to_others(request, state, given):
        return await _called(call)
    if not (may_have_key(request) or "key" in given or given.get("required")):
        return await _called(call)
    attempt = await in_thread(begin, request, given)
    if not isinstance(attempt, KeyedRequest):
        return await _called(call) if attempt is None else attempt
    if in_task():
        refuse_transaction(attempt)
        return await finish_despite_disconnect(_claimed(attempt, state, call))
    return await _claimed(attempt, state, call) if attempt.alias is None else exactly_once(attempt, state, call)


async def _claimed(attempt: KeyedRequest, state: Idempotency, call: Callable[[], Any]) -> Any:
    if (answer := await claim(attempt)) is not None:
        return await in_thread(answer)
    state.attempt = attempt
    try:
        response = await _called(call)
    except Exception:
        await in_thread(finish, attempt)
        raise
    except BaseException:  # otherwise the claim would be renewed as long as the process lives
        end(attempt)
        raise
    try:
        is_left = is_left_to_middleware(attempt, state, response)
    except TypeError:  # the view has acted: its claim runs out, as if the process had died
        end(attempt)
        raise
    if not is_left:
        await in_thread(finish, attempt, response)
    return response


async def _called(call: Callable[[], Any]) -> Any:
    return await call() if in_task() else call()


def _is_left_to_others(request: HttpRequest, state: Idempotency, given: Mapping[str, Any]) -> bool:
    """Is there nothing to do here: a safe method, or a key that is claimed around this view?

    ImproperlyConfigured if the middleware has taken the view for one without ``@idempotent``.
    """
    if request.method in SAFE_METHODS:
        return True
    # an attempt that has ended is an earlier one: a decorator above has called the view again
    is_claimed = state.attempt is not None and state.attempt.running
    if state.served or (is_claimed and given.get("atomic")):
        raise ImproperlyConfigured(
            "The IdempotencyMiddleware did not see the options of @idempotent: a decorator above it, or a method that "
            "overrides the decorated one, hides them. Put @idempotent on top, or use functools.wraps in that decorator."
        )
    return is_claimed


def _without_half_commit(request: HttpRequest, view: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the view. Under ATOMIC_REQUESTS, roll back what it wrote if it returns a 5xx, which also frees the key."""
    response = view(*args, **kwargs)
    if request.method not in SAFE_METHODS and getattr(response, "status_code", 0) >= 500:
        for alias, entry in connections.settings.items():
            if entry["ATOMIC_REQUESTS"] and in_transaction(alias):
                transaction.set_rollback(True, using=alias)
    return response
