"""Who sends requests: clients with a credential, browsers with forms, one that still runs, one whose process dies."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.test import AsyncClient, Client

from tests.conftest import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.idempotency.views import Stage

CROWD = 8


class Sender:
    """A client with a credential, so that its header keys count."""

    def __init__(self, key: str | None = None, *, who: str = "a", **defaults: Any) -> None:
        self.key = key
        self.client = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {who}"}, **defaults)

    def post(self, shape: str = "plain", data: Any = None, *, key: str | None = None, **more: Any) -> Any:
        """JSON to /<shape>/ with the key in the header."""
        sent = self.key if key is None else key
        headers = {**more.pop("headers", {}), **({} if sent is None else {"Idempotency-Key": sent})}
        body = {"name": "x"} if data is None else data
        return self.client.post(f"/{shape}/", body, content_type="application/json", headers=headers, **more)


class Browser:
    """A client that keeps cookies, obeys CSRF, and sends what the page says."""

    def __init__(self, other: Browser | None = None) -> None:
        """A tab beside those of ``other``, or another browser."""
        self.client = Client(enforce_csrf_checks=True)
        if other is not None:
            self.client.cookies.update(other.client.cookies)

    def open(self, shape: str = "form", form: int = 0) -> dict[str, Any]:
        """The hidden fields of a form on the page."""
        return hidden_fields(self.client.get(f"/{shape}/").content.decode().split("<form")[form + 1])

    def send(self, fields: dict[str, Any], shape: str = "form", **more: Any) -> Any:
        return self.client.post(f"/{shape}/", fields, **more)


def hidden_fields(html: str) -> dict[str, Any]:
    found = {}
    for tag in re.findall(r"<input [^>]*type=.hidden.[^>]*>", html):
        name = re.search(r'name="([^"]*)"', tag)
        value = re.search(r'value="([^"]*)"', tag)
        assert name, tag
        found[name[1]] = value[1] if value else ""
    return found


def refresh_of(page: Any) -> str:
    """The address that a waiting page loads next."""
    return str(page["Refresh"].partition("url=")[2])


class Running:
    """A first request whose view has acted and is at work until the end of the block, or until ``go_on``."""

    def __init__(self, site: Stage, send: Callable[[], Any]) -> None:
        self.acted, self.go_on = threading.Event(), threading.Event()
        self.site, self.send, self.answer = site, send, None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.answer = self.send()
        finally:
            connections.close_all()

    def _pause(self, request: Any) -> None:
        self.site.during = lambda request: None  # copies that do run go through
        self.acted.set()
        assert self.go_on.wait(PATIENCE)

    def __enter__(self) -> Any:
        self.site.during = self._pause
        self.thread.start()
        assert self.acted.wait(PATIENCE)
        return self

    def __exit__(self, *error: object) -> None:
        self.go_on.set()
        self.thread.join(PATIENCE)


def at_once(act: Callable[[], Any], times: int = CROWD) -> list[Any]:
    """What ``act`` gives in each of as many threads, that begin together."""
    barrier = threading.Barrier(times)

    def run() -> Any:
        try:
            barrier.wait(PATIENCE)
            return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(times) as pool:
        return [future.result(2 * PATIENCE) for future in [pool.submit(run) for _ in range(times)]]


class Died(BaseException):
    """The process is gone: nothing is tidied up."""


def die(site: Stage, send: Callable[[], Any]) -> None:
    """A request whose process dies in the view."""

    def killed(request: Any) -> None:
        raise Died

    site.during = killed
    with pytest.raises(Died):
        send()
    assert nothing_is_renewed(), "a thread that was told to end leaves a claim that is renewed"
    site.during = lambda request: None


def nothing_is_renewed() -> bool:
    from django_distlock.idempotency.upkeep import renewal

    return not renewal._due


def by_task(shape: str, key: str, data: Any = None, **headers: str) -> Any:
    """The answer under ASGI."""
    known = {"Authorization": "Bearer a", "Idempotency-Key": key} | headers
    client = AsyncClient(raise_request_exception=False)
    body = {"a": 1} if data is None else data
    return asyncio.run(client.post(f"/{shape}/", body, content_type="application/json", headers=known))


async def client_leaves(request: asyncio.Task[Any], acted: threading.Event, go_on: Callable[[], Any]) -> None:
    """Its task is cancelled when the view, or the claim, has begun; what goes on without it is awaited."""
    await asyncio.to_thread(acted.wait, PATIENCE)
    request.cancel()
    go_on()
    with pytest.raises(asyncio.CancelledError):
        await request
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*others, return_exceptions=True)
