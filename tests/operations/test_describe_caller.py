"""A holder is shown with its thread or task and the route that it serves, never with the path, which may be secret."""

from __future__ import annotations

import asyncio
import re
import threading
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from rest_framework.views import APIView

from django_distlock import advisory_lock, held_locks
from django_distlock.backends.text import SHORT, readable, short

pytestmark = pytest.mark.usefixtures("databases")
SECRET = "c4n4ry-t0ken"


def holders(using: str, name: str) -> HttpResponse:
    """Of the lock and of what is taken within, after host and process."""
    found = [info.holder for info in held_locks(using)[0].locks if info.holder and (info.name or "").startswith(name)]
    return HttpResponse("\n".join(holder.split(":", 2)[2] for holder in found))


def urls(using: str, name: str) -> tuple[Any, ...]:
    lock = advisory_lock(name, using=using, timeout=5)
    inner = advisory_lock(f"{name} within", using=using, timeout=5)

    @lock
    def view(request: HttpRequest, token: str) -> HttpResponse:
        with inner:
            return holders(using, name)

    @lock
    async def async_view(request: HttpRequest, token: str) -> HttpResponse:
        async with inner:
            return await asyncio.to_thread(holders, using, name)

    class Rest(APIView):
        authentication_classes = permission_classes = ()

        @lock
        def post(self, request: HttpRequest, token: str) -> HttpResponse:
            return holders(using, name)

    views = {"reset": view, "async": async_view, "rest": Rest.as_view()}
    return tuple(path(f"{kind}/<token>/", view) for kind, view in views.items())


@pytest.mark.parametrize("using", ["postgres", "redis"])
def test_a_view_tells_its_route(using: str, name: str) -> None:
    name, thread = name[-100:], threading.current_thread().name

    async def ask() -> str:
        return str((await AsyncClient().get(f"/async/{SECRET}/")).text)

    with override_settings(ROOT_URLCONF=urls(using, name)):
        for method, kind, shown, locks in (
            ("POST", "reset", "POST /reset/<token>/", 2),
            ("POST", "rest", "POST /rest/<token>/", 1),
            ("web-9:1:MainThread", "reset", "? /reset/<token>/", 2),  # clients choose it
        ):
            told = Client().generic(method, f"/{kind}/{SECRET}/").text.split("\n")
            assert [each.startswith(f"{thread}, {shown}") for each in told] == [True] * locks, told
        told = asyncio.run(ask()).split("\n")
        task = re.compile(r"Task-\d+ \([\w.<>]+\), GET /async/<token>/")
        assert [bool(task.match(each)) for each in told] == [True] * 2, told
    with advisory_lock(name, using=using, timeout=5):
        assert "POST" not in holders(using, name).text


def test_a_long_route_of_other_letters_is_cut_between_them() -> None:
    route = "host:1:MainThread, GET /" + "профиль/" * 20
    kept = short(route)
    assert SHORT // 6 < len(readable(kept)) <= len(kept) <= SHORT
    assert route.startswith(readable(kept))
