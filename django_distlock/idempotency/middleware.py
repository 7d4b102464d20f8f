"""The middleware: it claims the key of a request, repeats a stored answer, and stores the answer of the view, for views
without ``@idempotent``."""

from __future__ import annotations

import sys
import traceback
from asyncio import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.signals import got_request_exception
from django.http import StreamingHttpResponse

from django_distlock.concurrency.flow import run

from .decisions import SAFE_METHODS, BadKey
from .execution import begin, claim, end, finish, in_thread, refuse_transaction, state_of
from .handle import Idempotency, KeyedRequest
from .http import responses
from .http.disconnect import finish_despite_disconnect
from .http.requests import keep_readable, may_have_key
from .options import is_served_by_middleware

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from django.http import HttpRequest, HttpResponse, HttpResponseBase


class IdempotencyMiddleware:
    """Put it below the middleware of sessions, CSRF, authentication, messages and locale.

    It claims the key in ``process_view``, before the transaction of ATOMIC_REQUESTS begins, and stores the answer after
    that transaction. Views with ``@idempotent`` and those of the REST framework's mixin do all of this themselves, so
    that the decorators above are called first. Each request gets ``request.idempotency``
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
            self.process_template_response = self._finish  # type: ignore[method-assign]

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        request.idempotency = Idempotency(has_middleware=True)  # type: ignore[attr-defined]
        answering = self._answer(request)
        if not self.is_async:
            return run(answering)
        if request.method in SAFE_METHODS or not may_have_key(request):
            return answering  # a task of its own costs time, and most requests need none
        return finish_despite_disconnect(answering, lambda: state_of(request).attempt is not None)

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        try:
            response = self.get_response(request)
            response = await response if self.is_async else response
        except BaseException as error:
            if (attempt := _attempt_of(request)) is not None:
                if isinstance(error, CancelledError) and state_of(request).late:
                    await in_thread(finish, attempt, StreamingHttpResponse())  # the view has acted, and nobody waits
                end(attempt)  # no answer comes
            raise
        await self._finish(request, response)
        if getattr(request, "idempotency_key_issued", False):
            responses.mark_as_private(response)
        return response  # type: ignore[no-any-return]

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        """The stored answer, or an error; None: run the view."""
        return run(self.aprocess_view(request, view, args, kwargs))

    async def aprocess_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        """:meth:`process_view` for a task."""
        if not _has_to_do(request, view):
            return None
        attempt = await in_thread(begin, request, {})
        if not isinstance(attempt, KeyedRequest):
            return attempt
        refuse_transaction(attempt)
        state_of(request).attempt = attempt
        answer = await claim(attempt)
        return None if answer is None else await in_thread(answer)

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        """Store the answer before it is rendered: the view has acted, and rendering may fail."""
        return run(self._finish(request, response))

    async def _finish(self, request: HttpRequest, response: Any) -> Any:
        if (attempt := _attempt_of(request)) is not None:
            await in_thread(finish, attempt, response)
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> None:
        """Note that the view has raised, and not another middleware."""
        if (attempt := _attempt_of(request)) is not None:
            attempt.outcome_unknown = False


def _has_to_do(request: HttpRequest, view: Any) -> bool:
    """Is the view served here, and may the request have a key? Not most requests."""
    if request.method in SAFE_METHODS:
        return False
    state = state_of(request)
    state.served = is_served_by_middleware(view, request.method or "")
    if not state.served:
        with suppress(BadKey):  # the client has gone: told when the key is claimed
            keep_readable(request)
    return state.served and may_have_key(request)


def _attempt_of(request: HttpRequest) -> KeyedRequest | None:
    """The attempt that the middleware has to finish."""
    state = state_of(request)
    attempt = state.attempt
    return attempt if (state.served or state.late) and attempt is not None and attempt.running else None


def _note_failure(*, request: HttpRequest | None = None, **facts: Any) -> None:
    """Note an exception that another middleware has raised after the view: Django answers 500, and the view may have
    acted. What has raised in a ``process_view`` did so before the view."""
    if request is None or not hasattr(request, "idempotency") or (attempt := _attempt_of(request)) is None:
        return
    if attempt.outcome_unknown is None:
        frames = traceback.walk_tb(sys.exc_info()[2])
        attempt.outcome_unknown = all(frame.f_code.co_name != "process_view" for frame, _line in frames)


got_request_exception.connect(_note_failure, dispatch_uid="django_distlock.idempotency")
