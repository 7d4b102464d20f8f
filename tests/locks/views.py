"""Locked views in every shape, and their URLs: /<shape>/. No database is needed."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from django_distlock import advisory_lock, lock_all
from tests.locks.elsewhere import is_free

NAME = "decorators:view"
SECOND = "decorators:second"
NAMES = (NAME, SECOND)
LOCK = advisory_lock(NAME, using="memory", timeout=0)
OTHER = advisory_lock(SECOND, using="memory", timeout=0)
BOTH = lock_all([NAME, SECOND], using="memory", timeout=0)

# What the views ``raises`` raise in the running test.
to_raise: list[Exception] = []


def inside() -> str:
    """Those of NAMES that nobody else gets while the view runs."""
    return ",".join(name for name in NAMES if not is_free(name))


def body(request: HttpRequest) -> HttpResponse:
    return HttpResponse(inside())


async def abody(request: HttpRequest) -> HttpResponse:
    return HttpResponse(inside())


def raises(request: HttpRequest) -> HttpResponse:
    raise to_raise[-1]


async def araises(request: HttpRequest) -> HttpResponse:
    return raises(request)


class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return body(request)


class Async(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        return await abody(request)


class Rest(ViewSet):
    authentication_classes = ()

    def list(self, request: Any) -> Response:
        return Response(inside())


def on(method: str, base: type, *decorators: Any) -> Any:
    """A subclass of ``base`` with the method decorated, from the inside outwards."""
    found = base
    for decorator in decorators:
        found = method_decorator(decorator, name=method)(type(base.__name__, (found,), {}))
    return found


# The other shapes of sync views are in tests/transactions/views.py.
LOCKED: dict[str, Any] = {
    "function": LOCK(body),
    "async": LOCK(abody),
    "dispatch": on("dispatch", Plain, LOCK).as_view(),
    "async_dispatch": on("dispatch", Async, LOCK).as_view(),
    "async_dispatch_inherited": type("Child", (on("dispatch", View, LOCK),), {"get": Async.get}).as_view(),  # type: ignore[attr-defined]
    "async_get": on("get", Async, LOCK).as_view(),
    "async_around_as_view": LOCK(Async.as_view()),
    "csrf_exempt_above": csrf_exempt(LOCK(body)),
    "async_csrf_exempt_below": LOCK(csrf_exempt(abody)),
    "drf_dispatch": on("dispatch", Rest, LOCK).as_view({"get": "list"}),
}
STACKED: dict[str, Any] = {
    "stacked": OTHER(never_cache(LOCK(body))),
    "async_stacked_dispatch_list": on("dispatch", Async, [OTHER, LOCK]).as_view(),
    "dispatch_lock_all": on("dispatch", Plain, BOTH).as_view(),
}
OTHERS: dict[str, Any] = {
    "raises": raises,
    "async_raises": araises,
    "post_only": require_POST(LOCK(body)),
}

urlpatterns = [path(f"{shape}/", view) for shape, view in {**LOCKED, **STACKED, **OTHERS}.items()]
