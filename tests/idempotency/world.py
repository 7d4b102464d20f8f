"""The stage on which views act, who sends them requests, and what the table of the keys has."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import messages
from django.db import connections
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.test import AsyncClient, Client
from django.urls import clear_url_caches

from tests.conftest import PATIENCE
from tests.idempotency import MIDDLEWARE as MIDDLEWARE
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable

CROWD = 8
DATABASES = ("default", "postgres", "mariadb")
every_database = pytest.mark.parametrize("alias", DATABASES)
on_servers = pytest.mark.parametrize("alias", ["postgres", "mariadb"])


class Stage:
    """A view writes a row of ``name`` to ``alias``, calls ``during``, and gives what ``answer`` returns."""

    def __init__(self) -> None:
        self.reset("default", "")

    def reset(self, alias: str, name: str) -> None:
        self.alias, self.name = alias, name
        self.runs: list[HttpRequest] = []
        self.during: Callable[[HttpRequest], Any] = lambda request: None
        self.answer: Callable[[HttpRequest], Any] = created

    @property
    def effects(self) -> int:
        return rows.count(self.alias, self.name)


def created(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"run": len(stage.runs)}, status=201, headers={"Location": "/made/1/", "X-Other": "no"})


def redirect(request: HttpRequest) -> HttpResponse:
    messages.success(request, "Saved.")
    return HttpResponseRedirect("/made/1/")


stage = Stage()


# -- what is stored


def sql(alias: str, statement: str, *parameters: Any) -> list[Any]:
    """What the statement finds; {keys} is the table of the keys."""
    with connections[alias].cursor() as cursor:
        cursor.execute(statement.format(keys="django_distlock_idempotency"), parameters)
        return list(cursor.fetchall()) if cursor.description else []


def forget_everything(alias: str) -> None:
    sql(alias, "DELETE FROM {keys}")
    sql(alias, "DELETE FROM distlock_written")


def states(alias: str) -> list[str]:
    """The states of all keys."""
    return [state for (state,) in sql(alias, "SELECT state FROM {keys}")]


def expire(alias: str) -> None:
    """All claims have run out, and the lifetime of all answers is over."""
    sql(alias, "UPDATE {keys} SET expires_at = 1")


def change(settings: Any, **values: Any) -> None:
    """Change settings of the keys."""
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, **values}


def serve(settings: Any, urls: str) -> None:
    """The site has the views of this module."""
    settings.ROOT_URLCONF = urls
    clear_url_caches()


# -- who sends


class Sender:
    """A client with a credential, so that its header keys count."""

    def __init__(self, key: str | None = None, *, who: str = "Bearer a") -> None:
        self.key = key
        self.client = Client(raise_request_exception=False, headers={"Authorization": who})

    def post(self, shape: str = "plain", data: Any = None, *, key: str | None = None, **more: Any) -> Any:
        """JSON to /<shape>/ with the key in the header."""
        sent = self.key if key is None else key
        headers = {**({} if sent is None else {"Idempotency-Key": sent}), **more.pop("headers", {})}
        more.setdefault("content_type", "application/json")
        return self.client.post(f"/{shape}/", {"name": "x"} if data is None else data, headers=headers, **more)


class Browser:
    """A client that keeps cookies, obeys CSRF, and sends what the page says; or a tab beside those of ``other``."""

    def __init__(self, other: Browser | None = None, **headers: str) -> None:
        self.client = Client(enforce_csrf_checks=True, headers=headers)
        if other is not None:
            self.client.cookies.update(other.client.cookies)

    def open(self, shape: str = "form", form: int = 0) -> dict[str, Any]:
        """The hidden fields of a form on the page."""
        return hidden_fields(self.shown(f"/{shape}/").split("<form")[form + 1])

    def shown(self, url: str) -> str:
        return str(self.client.get(url).content.decode())

    def send(self, fields: dict[str, Any], shape: str = "form", **more: Any) -> Any:
        return self.client.post(f"/{shape}/", fields, **more)


def hidden_fields(html: str) -> dict[str, Any]:
    found = {}
    for tag in re.findall(r"<input [^>]*type=.hidden.[^>]*>", html):
        name, value = re.search(r'name="([^"]*)"', tag), re.search(r'value="([^"]*)"', tag)
        assert name, tag
        found[name[1]] = value[1] if value else ""
    return found


def by_task(shape: str, key: str, data: Any = None, **headers: str) -> Any:
    """The answer under ASGI."""
    known = {"Authorization": "Bearer a", "Idempotency-Key": key} | headers
    client = AsyncClient(raise_request_exception=False)
    body = {"a": 1} if data is None else data
    return asyncio.run(client.post(f"/{shape}/", body, content_type="application/json", headers=known))


# -- in which circumstances


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


def fails(error: BaseException | type[BaseException]) -> Any:
    """What a view does whose work ends so."""

    def during(*args: Any) -> None:
        raise error

    return during


def die(site: Stage, send: Callable[[], Any]) -> None:
    """A request whose process dies in the view."""
    site.during = fails(Died)
    with pytest.raises(Died):
        send()
    assert nothing_is_renewed(), "a thread that was told to end leaves a claim that is renewed"
    site.during = lambda request: None


def nothing_is_renewed() -> bool:
    from django_distlock.idempotency.upkeep import renewal

    return not renewal._attempts


async def client_leaves(request: asyncio.Task[Any], acted: threading.Event, go_on: Callable[[], Any]) -> None:
    """Its task is cancelled when the view, or the claim, has begun; what goes on without it is awaited."""
    await asyncio.to_thread(acted.wait, PATIENCE)
    request.cancel()
    go_on()
    with pytest.raises(asyncio.CancelledError):
        await request
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*others, return_exceptions=True)
