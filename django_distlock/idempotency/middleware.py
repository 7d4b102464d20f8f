"""Finds the key of a request, answers what has been answered, and keeps what the view answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from . import answers, engine
from .attendance import to_the_end
from .flow import claim, enter, finish, look
from .job import Flow, Job, adrive, drive
from .options import PLAIN, is_exempt, options_of, view_class
from .state import Idempotency

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from django.http import HttpRequest, HttpResponse, HttpResponseBase


class IdempotencyMiddleware:
    """Put it below the middleware of sessions, CSRF, authentication, messages and locale.

    It acts in ``process_view``, where those have had their say: a stored answer is given only to a request that would
    have reached the view. Views with ``@idempotent(atomic=True)`` and those of the REST framework's mixin do the work
    themselves. Each request gets ``request.idempotency`` (:class:`~django_distlock.idempotency.state.Idempotency`).
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        self.is_async: bool = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
            self.process_view = self.aprocess_view  # type: ignore[method-assign, assignment]

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        request.idempotency = Idempotency()  # type: ignore[attr-defined]
        if self.is_async:
            return self._acall(request)
        response: HttpResponseBase = self.get_response(request)
        if (job := _job_of(request)) is not None:
            drive(finish(job, response))
        answers.mark_as_private(request, response)
        return response

    async def _acall(self, request: HttpRequest) -> HttpResponseBase:
        return await to_the_end(self._answer(request), lambda: request.idempotency.begun)  # type: ignore[attr-defined]

    async def _answer(self, request: HttpRequest) -> HttpResponseBase:
        response: HttpResponseBase = await self.get_response(request)
        if (job := _job_of(request)) is not None:
            await adrive(finish(job, response))
        answers.mark_as_private(request, response)
        return response

    def process_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        """The answer, if it need not be the view's."""
        return drive(_before(request, view))

    async def aprocess_view(self, request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
        """:meth:`process_view` for a task."""
        return await adrive(_before(request, view))


def _before(request: HttpRequest, view: Any) -> Flow[HttpResponse | None]:
    method = request.method or ""
    if method in engine.SAFE_METHODS:
        return (yield from look(request)) if answers.WAIT_PARAMETER in request.GET else None
    if is_exempt(view, method) or getattr(view_class(view), "idempotency_in_view", False):
        return None
    options = options_of(view, method) or PLAIN
    if options.atomic:
        return None
    request.idempotency.options = options  # type: ignore[attr-defined]
    return (yield from begin(request, options, view))


def begin(request: HttpRequest, options: Any, view: Any = None) -> Flow[HttpResponse | None]:
    """None: run the view. Else the answer."""
    found = yield from enter(request, options, view)
    if not isinstance(found, Job):
        return found
    request.idempotency.begun = True  # type: ignore[attr-defined]
    answer = yield from claim(found)
    if answer is None:
        request.idempotency.job = found  # type: ignore[attr-defined]
    return answer


def _job_of(request: HttpRequest) -> Job | None:
    """The attempt that this middleware has to finish."""
    job: Job | None = request.idempotency.job  # type: ignore[attr-defined]
    return job if job is not None and job.running and job.alias is None else None
