"""Views that require a browser lock, of each kind."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.authentication import SessionAuthentication
from rest_framework.exceptions import ValidationError
from rest_framework.views import APIView

from django_distlock.browser import requires_lock
from django_distlock.models import LockEvent
from tests.browserlocks.http import site

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME = "cart:{request.user.pk}"
go_on = threading.Event()  # views with the header X-Wait end when a test says so
inside: list[asyncio.Event] = []  # set by a view with the header X-Stay, which ends when its task is cancelled


def write() -> None:
    """What a view does: a row that a rollback takes back."""
    LockEvent.objects.create(
        name="guarded", kind="cart", alias="", digest="", at="2026-01-01T00:00Z", reason="", holder=""
    )


def report(request: HttpRequest) -> JsonResponse:
    write()
    leases = request.distlock_leases  # type: ignore[attr-defined]
    blocks = len(connections["default"].atomic_blocks)
    return JsonResponse({"fences": {name: lease.fence for name, lease in leases.items()}, "blocks": blocks})


@requires_lock(NAME)
def plain(request: HttpRequest) -> HttpResponse:
    if request.method in ("GET", "HEAD"):
        return HttpResponse("the page")
    found = report(request)
    if "X-Wait" in request.headers:
        go_on.wait(30)
    if "X-Fail" in request.headers:
        raise ZeroDivisionError
    return found


@requires_lock(NAME, "till")
def two(request: HttpRequest) -> HttpResponse:
    return report(request)


@requires_lock(NAME)
@requires_lock("till")
def nested(request: HttpRequest) -> HttpResponse:
    return report(request)


def written_later() -> Iterator[bytes]:
    write()
    yield b"done"


@requires_lock(NAME)
def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(written_later())


@requires_lock(NAME)
async def async_stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(written_later())


@requires_lock("piece:{name}")
def piece(request: HttpRequest, name: str) -> HttpResponse:
    return report(request)


@requires_lock(NAME, methods=["GET"])
def reading(request: HttpRequest) -> HttpResponse:
    return HttpResponse("read")


@requires_lock(NAME)
async def coroutine(request: HttpRequest) -> HttpResponse:
    found = await sync_to_async(report)(request)
    if "X-Wait" in request.headers:
        await asyncio.to_thread(go_on.wait, 30)
    if "X-Stay" in request.headers:
        inside[0].set()
        await asyncio.Event().wait()
    if "X-Fail" in request.headers:
        raise ZeroDivisionError
    return found


@method_decorator(requires_lock(NAME), name="dispatch")
class OfClass(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("the page")

    def post(self, request: HttpRequest) -> HttpResponse:
        return report(request)


class Handler(View):
    @method_decorator(requires_lock(NAME))
    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return report(request)


@method_decorator(requires_lock(NAME), name="dispatch")
class AsyncOfClass(View):
    async def post(self, request: HttpRequest) -> HttpResponse:
        return await sync_to_async(report)(request)


@method_decorator(requires_lock(NAME), name="dispatch")
class OfRest(APIView):
    authentication_classes = (SessionAuthentication,)

    def post(self, request: Any) -> HttpResponse:
        write()
        raise ValidationError("after the write")


urlpatterns = [
    path("distlock/", include("django_distlock.browser.urls")),
    path("grant/", site.grant),
    path("plain/", plain),
    path("two/", two),
    path("nested/", nested),
    path("rest/", OfRest.as_view()),
    path("stream/", stream),
    path("async-stream/", async_stream),
    path("piece/<str:name>/", piece),
    path("reading/", reading),
    path("coroutine/", coroutine),
    path("of-class/", OfClass.as_view()),
    path("handler/", Handler.as_view()),
    path("async-of-class/", AsyncOfClass.as_view()),
]
