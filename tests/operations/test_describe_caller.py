"""A holder is shown with its thread or task and the route that it serves, never with the path, which may be secret."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path, re_path
from django.utils.decorators import method_decorator
from django.views import View
from rest_framework.views import APIView

from django_distlock import advisory_lock, held_locks
from django_distlock.backends.text import SHORT, readable, short
from django_distlock.concurrency import origin
from tests.matrix import MATRIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from rest_framework.request import Request

pytestmark = pytest.mark.usefixtures("databases")
SECRET = "c4n4ry-t0ken"
ME = f"{socket.gethostname()}:{os.getpid()}:"
each_alias = pytest.mark.parametrize("using", [entry.using for entry in MATRIX])


def _holders(using: str, *names: str) -> HttpResponse:
    (report,) = held_locks(using)
    found = {info.name: info.holder or "" for info in report.locks}
    return HttpResponse("\n".join(found[name] for name in names))


def _urls(using: str, name: str) -> ModuleType:
    @advisory_lock(name, using=using, timeout=5)
    def view(request: HttpRequest, token: str) -> HttpResponse:
        with advisory_lock(f"{name} within", using=using, timeout=5):
            return _holders(using, name, f"{name} within")

    @advisory_lock(name, using=using, timeout=5)
    async def async_view(request: HttpRequest, token: str) -> HttpResponse:
        async with advisory_lock(f"{name} within", using=using, timeout=5):
            return await asyncio.to_thread(_holders, using, name, f"{name} within")

    @method_decorator(advisory_lock(name, using=using, timeout=5), name="dispatch")
    class OfClass(View):
        def post(self, request: HttpRequest, token: str) -> HttpResponse:
            return _holders(using, name)

    @method_decorator(advisory_lock(name, using=using, timeout=5), name="dispatch")
    class AsyncOfClass(View):
        async def get(self, request: HttpRequest, token: str) -> HttpResponse:
            async with advisory_lock(f"{name} within", using=using, timeout=5):
                return await asyncio.to_thread(_holders, using, name, f"{name} within")

    urls = ModuleType("urls")
    urls.urlpatterns = [  # type: ignore[attr-defined]
        path("reset/<token>/", view),
        path("async/<token>/", async_view),
        re_path("^class/(?P<token>.+)/$", OfClass.as_view()),
        path("aclass/<token>/", AsyncOfClass.as_view()),
    ]
    return urls


def _told(using: str, told: str) -> str:
    """What the holder says, without what the server says."""
    assert SECRET not in told
    if using == "memory":
        return told.removeprefix(f"pid {os.getpid()}, ")
    assert told.startswith(ME), told
    return told.removeprefix(ME)


@each_alias
def test_a_view_tells_its_route(using: str, name: str) -> None:
    name = name[-100:]
    with override_settings(ROOT_URLCONF=_urls(using, name)):
        first, within = Client().post(f"/reset/{SECRET}/").text.split("\n")
        of_class = Client().post(f"/class/{SECRET}/").text
    thread = threading.current_thread().name
    for told in (first, within):
        assert _told(using, told).startswith(f"{thread}, POST /reset/<token>/")
    assert _told(using, of_class).startswith(f"{thread}, POST /class/(?P<token>.+)/$")
    assert origin.address() == ""
    with advisory_lock(name, using=using, timeout=5):
        assert "POST" not in _holders(using, name).text


@each_alias
def test_an_async_view_tells_its_task_and_its_route(using: str, name: str) -> None:
    name = name[-100:]

    async def ask(kind: str) -> str:
        answer: str = (await AsyncClient().get(f"/{kind}/{SECRET}/")).text
        assert origin.address() == ""
        return answer

    with override_settings(ROOT_URLCONF=_urls(using, name)):
        for kind in ("async", "aclass"):
            first, within = asyncio.run(ask(kind)).split("\n")
            for told in (first, within):
                assert re.match(rf"Task-\d+ \([\w.<>]+\), GET /{kind}/<token>/", _told(using, told)), told


class Rest(APIView):
    authentication_classes = ()
    permission_classes = ()

    @advisory_lock("rest", using="memory", timeout=5)
    def post(self, request: Request, token: str) -> HttpResponse:
        return HttpResponse(origin.address())

    @method_decorator(advisory_lock("rest", using="memory", timeout=5))
    def put(self, request: Request, token: str) -> HttpResponse:
        return HttpResponse(origin.address())


def test_handlers_of_rest_framework_and_methods_that_are_none() -> None:
    """Any word may be a method of HTTP, and clients choose it."""
    urls = ModuleType("urls")
    urls.urlpatterns = [path("rest/<token>/", Rest.as_view()), *_urls("memory", "rest").urlpatterns]  # type: ignore[attr-defined]
    with override_settings(ROOT_URLCONF=urls):
        assert Client().post(f"/rest/{SECRET}/").text == "POST /rest/<token>/"
        assert Client().put(f"/rest/{SECRET}/").text == "PUT /rest/<token>/"
        told = _told("memory", Client().generic("web-9:1:MainThread", f"/reset/{SECRET}/").text.split("\n")[0])
    assert told.startswith(f"{threading.current_thread().name}, ? /reset/<token>/")


def test_a_long_route_of_other_letters_is_cut_between_them() -> None:
    route = "профиль/" * 20
    kept = short(f"host:1:MainThread, GET /{route}")
    assert len(kept) <= SHORT
    assert readable(kept) == f"host:1:MainThread, GET /{route}"[: len(readable(kept))]
    assert len(readable(kept)) > SHORT // 6
    assert short("x" * 1000) == "x" * SHORT


@pytest.mark.parametrize("request_of", [lambda: None, HttpRequest])
def test_where_nothing_is_known_nothing_is_told(request_of: Callable[[], Any]) -> None:
    with origin.serving(request_of()):
        assert origin.describe_caller() == threading.current_thread().name


def test_what_is_told_is_short_and_comes_to_an_end() -> None:
    outer = SimpleNamespace(method="GET", resolver_match=SimpleNamespace(route="a" * 300))
    inner = SimpleNamespace(method="GET", resolver_match=SimpleNamespace(route="inner"))
    with origin.serving(outer):
        assert len(origin.address()) == origin.LONGEST
        with origin.serving(inner), origin.serving(None):
            assert origin.address() == "GET /inner"
        assert origin.address().startswith("GET /aaa")
    assert origin.address() == ""
