"""The middleware: it finds the key of a request, repeats a stored answer, and stores the answer of the view."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.signals import got_request_exception
from django.urls import Resolver404, get_resolver, resolve
from django.utils.module_loading import import_string

from django_distlock.concurrency.flow import run

from . import decisions
from .conf import middleware
from .decorator import imported
from .execution import blocking, claim, end, enter, finish, state_of
from .handle import Idempotency, KeyedRequest
from .http import responses
from .http.disconnect import finish_despite_disconnect
from .http.requests import has_no_key, may_have_key
from .http.waiting_page import is_answered_by_view, is_outcome_request, outcome
from .options import PLAIN, Options, is_exempt, options_of, view_class

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from django.http import HttpRequest, HttpResponse, HttpResponseBase


class IdempotencyMiddleware:
    """Put it below the middleware of sessions, CSRF, authentication, messages and locale.

    It claims the key in ``process_view``, before the transaction of ATOMIC_REQUESTS begins, and stores the answer after
    that transaction. ``@idempotent`` gives a stored answer, so that the decorators above it are called first; the
    middleware gives it only for a view without the decorator. Views with ``@idempotent(atomic=True)`` and those of the
    REST framework's mixin do all of this themselves. Each request gets ``request.idempotency``
    (:class:`~django_distlock.idempotency.handle.Idempotency`).
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        self.is_async: bool = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
            self.process_view = self.aprocess_view  # type: ignore[method-assign, assignment]
            self.process_template_response = self.aprocess_template_response  # type: ignore[method-assign]

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        state = request.idempotency = Idempotency()  # type: ignore[attr-defined]
        answer = self._answer(request, state)
        if not self.is_async:
            return run(answer)
        if not _may_claim(request):  # a task of its own costs time, and most requests need none
            return answer
        return finish_despite_disconnect(answer, lambda: state.begun)

    async def _answer(self, request: HttpRequest, state: Idempotency) -> HttpResponseBase:
        try:
            response: HttpResponseBase = self.get_response(request)
            if self.is_async:
                response = await response  # type: ignore[misc]
        except BaseException:  # KeyboardInterrupt, SystemExit: no answer comes, so the renewal must end
            if state.attempt is not None:
                end(state.attempt)
            raise
        if state.attempt is not None:
            await finish(state.attempt, response)
        # a decorator above @idempotent, like require_POST, may have refused the GET of the waiting page
        if response.status_code == 405 and is_outcome_request(request):
            response = await outcome(request, bare=True) or response
        if getattr(request, "idempotency_key_issued", False):
            responses.mark_as_private(response)
        return response

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        """Store the answer before it is rendered: the view has acted, and rendering may fail."""
        if (attempt := _attempt_of(request)) is not None:
            run(finish(attempt, response))
        return response

    async def aprocess_template_response(self, request: HttpRequest, response: Any) -> Any:
        """:meth:`process_template_response` for a task."""
        if (attempt := _attempt_of(request)) is not None:
            await finish(attempt, response)
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> None:
        """Note that the view has raised, and not another middleware."""
        if (attempt := _attempt_of(request)) is not None:
            attempt.raised = True

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        """The stored answer, or an error; None: run the view."""
        return None if _has_nothing_to_do(request, view) else run(_before(request, view))

    async def aprocess_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        """:meth:`process_view` for a task."""
        return None if _has_nothing_to_do(request, view) else await _before(request, view)


def position_of_middleware() -> int | None:
    """The index of the middleware, or of a class derived from it, in MIDDLEWARE."""
    for position, path in enumerate(middleware()):
        try:
            factory = import_string(path)
        except ImportError:  # Django reports it
            continue
        if isinstance(factory, type) and issubclass(factory, IdempotencyMiddleware):
            return position
    return None


def _may_claim(request: HttpRequest) -> bool:
    """Can a key be claimed for this request, whose view is not known yet?"""
    if request.method in decisions.SAFE_METHODS:
        return False
    return may_have_key(request) or _has_key_callable(request)


def _has_key_callable(request: HttpRequest) -> bool:
    """Does the view find the key by a callable? Django will resolve the path again, maybe by another URLconf."""
    urlconf = getattr(request, "urlconf", None)
    _ = get_resolver(urlconf).url_patterns  # imports the views, whose decorators register their callables
    if not imported.key_callables:
        return False
    try:
        view = resolve(request.path_info, urlconf).func
    except Resolver404:
        return False
    options = _acting(view, request.method or "")
    return options is not None and options.key is not None


def _has_nothing_to_do(request: HttpRequest, view: Any) -> bool:
    """Does the request have no key, and need none? Most requests."""
    method = request.method or ""
    if method in decisions.SAFE_METHODS:
        return not is_outcome_request(request) or is_answered_by_view(view, method)
    state: Idempotency = request.idempotency  # type: ignore[attr-defined]
    options = state.options = _acting(view, method)
    return options is None or has_no_key(request, options)


async def _before(request: HttpRequest, view: Any) -> HttpResponse | None:
    if request.method in decisions.SAFE_METHODS:
        return await outcome(request, view)
    state = state_of(request)
    options: Any = state.options
    attempt = await enter(request, options, view)
    if not isinstance(attempt, KeyedRequest):
        return attempt
    state.begun = True
    answering = await claim(attempt)
    if answering is None:
        state.attempt, attempt.reached = attempt, options is PLAIN
    elif options is PLAIN:
        return await blocking(answering)
    else:  # the decorator gives the answer
        state.answering = answering
    return None


def _acting(view: Any, method: str) -> Options | None:
    """The options of the view; None if it is exempt, or claims the key itself."""
    try:
        return _acting_once(view, method)
    except TypeError:  # the view is not hashable
        return _acting_once.__wrapped__(view, method)


@lru_cache(1024)
def _acting_once(view: Any, method: str) -> Options | None:
    if is_exempt(view, method) or getattr(view_class(view), "idempotency_in_view", False):
        return None
    options = options_of(view, method) or PLAIN
    return None if options.atomic else options


def _note_failure(*, request: HttpRequest | None = None, **facts: Any) -> None:
    """Note an exception that another middleware has raised: Django answers 500, and the view may have acted."""
    if request is not None and hasattr(request, "idempotency") and (attempt := _attempt_of(request)) is not None:
        attempt.doubtful = not attempt.raised


got_request_exception.connect(_note_failure, dispatch_uid="django_distlock.idempotency")


def _attempt_of(request: HttpRequest) -> KeyedRequest | None:
    """The attempt that the middleware has to finish."""
    attempt: KeyedRequest | None = request.idempotency.attempt  # type: ignore[attr-defined]
    return attempt if attempt is not None and attempt.running and attempt.alias is None else None
