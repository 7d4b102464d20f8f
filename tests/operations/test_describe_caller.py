"""A holder is shown with its thread or task and the route that it serves, never with the path, which may be secret."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import threading
from types import ModuleType

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework.views import APIView

from django_distlock import advisory_lock, held_locks
from django_distlock.backends.text import SHORT, readable, short

pytestmark = pytest.mark.usefixtures("databases")
SECRET = "c4n4ry-t0ken"


def _holders(using: str, *names: str) -> HttpResponse:
    found = {info.name: info.holder or "" for info in held_locks(using)[0].locks}
    me = f"{socket.gethostname()}:{os.getpid()}:"
    return HttpResponse("\n".join(found[name].removeprefix(me) for name in names))


def _urls(using: str, name: str) -> ModuleType:
    lock = advisory_lock(name, using=using, timeout=5)
    inner = advisory_lock(f"{name} within", using=using, timeout=5)

    @lock
    def view(request: HttpRequest, token: str) -> HttpResponse:
        with inner:
            return _holders(using, name, f"{name} within")

    @lock
    async def async_view(request: HttpRequest, token: str) -> HttpResponse:
        async with inner:
            return await asyncio.to_thread(_holders, using, name, f"{name} within")

    class Rest(APIView):
        authentication_classes = permission_classes = ()

        @lock
        def post(self, request: HttpRequest, token: str) -> HttpResponse:
            return _holders(using, name)

        @method_decorator(lock)
        def put(self, request: HttpRequest, token: str) -> HttpResponse:
            return _holders(using, name)

    urls = ModuleType("urls")
    urls.urlpatterns = [  # type: ignore[attr-defined]
        path("reset/<token>/", view),
        path("async/<token>/", async_view),
        path("rest/<token>/", Rest.as_view()),
    ]
    return urls


@pytest.mark.parametrize("using", ["postgres", "redis"])
def test_a_view_tells_its_route(using: str, name: str) -> None:
    name, thread = name[-100:], threading.current_thread().name

    async def ask() -> str:
        answer: str = (await AsyncClient().get(f"/async/{SECRET}/")).text
        return answer

    with override_settings(ROOT_URLCONF=_urls(using, name)):
        for method, kind, shown in (
            ("POST", "reset", "POST /reset/<token>/"),
            ("POST", "rest", "POST /rest/<token>/"),
            ("PUT", "rest", "PUT /rest/<token>/"),
            ("web-9:1:MainThread", "reset", "? /reset/<token>/"),  # clients choose it
        ):
            for told in Client().generic(method, f"/{kind}/{SECRET}/").text.split("\n"):
                assert told.startswith(f"{thread}, {shown}")
        for told in asyncio.run(ask()).split("\n"):
            assert re.match(r"Task-\d+ \([\w.<>]+\), GET /async/<token>/", told), told
    with advisory_lock(name, using=using, timeout=5):
        assert "POST" not in _holders(using, name).text


def test_a_long_route_of_other_letters_is_cut_between_them() -> None:
    route = "host:1:MainThread, GET /" + "профиль/" * 20
    kept = short(route)
    assert SHORT // 6 < len(readable(kept)) <= len(kept) <= SHORT
    assert route.startswith(readable(kept))
