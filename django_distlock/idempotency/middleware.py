"""Finds the key of a request, answers what has been answered, and keeps what the view answers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.signals import got_request_exception
from django.http import HttpResponse

from django_distlock.concurrency.flow import Flow, arun, run

from . import csrf, decisions  # noqa: F401 - csrf listens to log-ins
from .execution import begin, blocking, finish, leave
from .handle import Idempotency
from .http import responses
from .http.disconnect import to_the_end
from .http.requests import has_none
from .http.waiting_page import is_asked, is_told_by_view, look
from .options import PLAIN, Options, is_exempt, options_of, view_class

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from django.http import HttpRequest, HttpResponseBase

    from .handle import Attempt


class IdempotencyMiddleware:
    """Put it below the middleware of sessions, CSRF, authentication, messages and locale.

    It claims the key in ``process_view``, before the transaction of ATOMIC_REQUESTS begins, and keeps the answer when
    that has ended. What was kept is given where ``@idempotent`` stands, so that the decorators above it are asked
    first; only a view without it is answered from here. Views with ``@idempotent(atomic=True)`` and those of the REST
    framework's mixin do all of the work themselves. Each request gets ``request.idempotency``
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
        request.idempotency = Idempotency()  # type: ignore[attr-defined]
        if self.is_async:
            return self._acall(request)
        try:
            response: HttpResponseBase = self.get_response(request)
        except BaseException:  # the thread is told to end: nothing is renewed any more
            _leave(request)
            raise
        if (attempt := _attempt_of(request)) is not None:
            run(finish(attempt, response))
        if _is_not_allowed(request, response):
            response = run(look(request, bare=True)) or response
        if getattr(request, "idempotency_key_issued", False):
            responses.mark_as_private(response)
        return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        return await to_the_end(self._answer(request), lambda: request.idempotency.begun)  # type: ignore[attr-defined]

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await self.get_response(request)
        except BaseException:
            _leave(request)
            raise
        if (attempt := _attempt_of(request)) is not None:
            await arun(finish(attempt, response))
        if _is_not_allowed(request, response):
            seen: HttpResponse | None = await arun(look(request, bare=True))
            response = seen or response
        if getattr(request, "idempotency_key_issued", False):
            responses.mark_as_private(response)
        return response

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        """The view has acted: that is kept before the answer is rendered, which may fail."""
        if (attempt := _attempt_of(request)) is not None:
            run(finish(attempt, response))
        return response

    async def aprocess_template_response(self, request: HttpRequest, response: Any) -> Any:
        """:meth:`process_template_response` for a task."""
        if (attempt := _attempt_of(request)) is not None:
            await arun(finish(attempt, response))
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> None:
        """The view has raised, and nobody else."""
        if (attempt := _attempt_of(request)) is not None:
            attempt.raised = True

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        """The answer, if it need not be the view's."""
        return None if _is_for_nobody(request, view) else run(_before(request, view))

    async def aprocess_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        """:meth:`process_view` for a task."""
        return None if _is_for_nobody(request, view) else await arun(_before(request, view))


def _is_for_nobody(request: HttpRequest, view: Any) -> bool:
    """Most requests: they have no key and need none."""
    method = request.method or ""
    if method in decisions.SAFE_METHODS:
        return not is_asked(request) or is_told_by_view(view, method)
    options = request.idempotency.options = _acting(view, method)  # type: ignore[attr-defined]
    return options is None or has_none(request, options)


def _before(request: HttpRequest, view: Any) -> Flow[HttpResponse | None]:
    if request.method in decisions.SAFE_METHODS:
        return (yield from look(request, view))
    state: Idempotency = request.idempotency  # type: ignore[attr-defined]
    options: Any = state.options
    answer = yield from begin(request, options, view)
    if options is not PLAIN and state.attempt is not None:  # the decorator lets the view run
        state.attempt.reached = False
    if answer is None or isinstance(answer, HttpResponse):
        return answer
    if options is not PLAIN:  # the decorator gives the answer
        state.answering = answer
        return None
    return (yield from blocking(answer))


def _is_not_allowed(request: HttpRequest, response: HttpResponseBase) -> bool:
    """Has a decorator above ``@idempotent`` refused the GET of the waiting page, as ``require_POST`` does?"""
    return response.status_code == 405 and is_asked(request)


def _acting(view: Any, method: str) -> Options | None:
    """The options that the middleware acts upon; None for a view that is exempt, or does it itself."""
    try:
        return _acting_once(view, method)
    except TypeError:  # a view that has no hash
        return _acting_once.__wrapped__(view, method)


@lru_cache(1024)
def _acting_once(view: Any, method: str) -> Options | None:
    if is_exempt(view, method) or getattr(view_class(view), "idempotency_in_view", False):
        return None
    options = options_of(view, method) or PLAIN
    return None if options.atomic else options


def _leave(request: HttpRequest) -> None:
    if (attempt := _attempt_of(request)) is not None:
        leave(attempt)


def _note_failure(*, request: HttpRequest | None = None, **facts: Any) -> None:
    """Django makes a 500 of an exception: was it another middleware's, whose view may have acted?"""
    if request is not None and hasattr(request, "idempotency") and (attempt := _attempt_of(request)) is not None:
        attempt.doubtful = not attempt.raised


got_request_exception.connect(_note_failure, dispatch_uid="django_distlock.idempotency")


def _attempt_of(request: HttpRequest) -> Attempt | None:
    """The attempt that this middleware has to finish."""
    attempt: Attempt | None = request.idempotency.attempt  # type: ignore[attr-defined]
    return attempt if attempt is not None and attempt.running and attempt.alias is None else None
