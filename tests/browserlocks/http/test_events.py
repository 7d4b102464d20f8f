"""Server-sent events: what arrives, what it costs, and that nothing is left when a client goes away."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient

from django_distlock import BackendUnavailable
from django_distlock.browser import store
from django_distlock.browser.http import endpoints, events, watching
from django_distlock.browser.http.events import MOST_STREAMS
from tests.browserlocks.http.people import EVENTS, Person, new
from tests.browserlocks.served import PATIENCE, Site
from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.usefixtures("crew")


def path_of(*ids: str) -> str:
    return f"{EVENTS}?{urlencode([('id', each) for each in ids])}"


def waiting(person: Person, name: str) -> str:
    """A place in the queue, as of a hidden tab: it lives long enough for a test that is late."""
    lease = new()
    assert person.acquire(person.grant(name), lease, hidden=True).status_code == 409
    return lease


async def asked(person: Person, *ids: str) -> Any:
    """The response of ASGI to a browser of this person."""
    client = AsyncClient()
    client.cookies = person.client.cookies
    return await client.get(path_of(*ids))


async def opened(person: Person, *ids: str) -> AsyncIterator[bytes]:
    """A stream of events that watches all of these."""
    response = await asked(person, *ids)
    assert (response.status_code, response["Content-Type"]) == (200, "text/event-stream")
    chunks: AsyncIterator[bytes] = response.streaming_content
    assert f"{len(ids)} watched" in (await anext(chunks)).decode()
    return chunks


async def event(chunks: AsyncIterator[bytes]) -> tuple[str, dict[str, Any]]:
    """The next event."""
    async with asyncio.timeout(PATIENCE):
        kind, data = (await anext(chunks)).decode().strip().split("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def run(main: Callable[[], Any]) -> None:
    asyncio.run(main())


def test_a_turn_when_the_lock_is_free(ada: Person, bo: Person, grant: str) -> None:
    """Of the first one only; and when the holder is gone without a word."""
    lease, _ = ada.take(grant)
    first, second = waiting(bo, "cart"), waiting(bo, "cart")

    async def main() -> None:
        chunks = await opened(bo, first, second)
        await sync_to_async(ada.release)(lease)
        assert await event(chunks) == ("turn", {"id": first})
        await sync_to_async(bo.release)(first)
        assert await event(chunks) == ("turn", {"id": second})

    run(main)


def test_a_loss_and_the_next_turn(ada: Person, bo: Person, grant: str) -> None:
    """A tab that has lost its lease asks with the same id again, and opens no other stream for that."""
    lease, fence = ada.take(grant)
    other: list[str] = []

    def ask_again() -> None:
        other.append(bo.take(bo.grant("cart"))[0])
        assert ada.acquire(grant, lease, hidden=True).status_code == 409

    async def main() -> None:
        chunks = await opened(ada, lease)
        await sync_to_async(store.break_lease)("default", "cart", fence)
        assert await event(chunks) == ("lost", {"id": lease, "reason": "broken"})
        await sync_to_async(ask_again)()
        await sync_to_async(bo.release)(other[0])
        assert await event(chunks) == ("turn", {"id": lease})

    run(main)


@pytest.mark.parametrize("atomic", [False, True])
def test_what_is_answered(ada: Person, bo: Person, grant: str, monkeypatch: pytest.MonkeyPatch, atomic: bool) -> None:
    """Only what is the visitor's own; and no proxy collects or compresses it. With ATOMIC_REQUESTS Django refuses
    async views."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
    lease, _ = ada.take(grant)

    async def main() -> None:
        response = await asked(bo, lease, new())
        assert response["Cache-Control"] == "no-store, no-transform"
        assert response["X-Accel-Buffering"] == "no"
        assert response["Content-Encoding"] == "identity"
        assert b"0 watched" in await anext(response.streaming_content)
        assert (await asked(ada, "'; DROP TABLE")).status_code == 400

    run(main)
    assert ada.client.post(EVENTS).status_code == 405
    # on WSGI 204 tells an EventSource to ask no more; an error would be mailed to the admins for each page
    assert ada.client.get(path_of(new())).status_code == 204


def test_a_stream_beats_and_ends_and_the_browser_connects_again(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a log-out reaches it."""

    async def main() -> None:
        monkeypatch.setattr(events, "HEARTBEAT", 0)
        chunks = (await asked(ada)).streaming_content
        assert (await anext(chunks)).startswith(b"retry: ")
        assert await anext(chunks) == b": alive\n\n"
        monkeypatch.setattr(events, "LIFETIME", 0)
        assert len([chunk async for chunk in (await asked(ada)).streaming_content]) == 1

    run(main)


def test_too_many_streams_of_one_principal(ada: Person, bo: Person) -> None:
    async def main() -> None:
        streams = [await opened(ada) for _ in range(MOST_STREAMS)]
        assert (await asked(ada)).status_code == 429
        assert (await asked(bo)).status_code == 200
        assert len(streams) == MOST_STREAMS

    run(main)


def test_a_database_that_is_down(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise BackendUnavailable("It is down.")

    monkeypatch.setattr(store, "names_of", fail)
    response = asyncio.run(asked(ada, new()))
    assert (response.status_code, response["Retry-After"]) == (503, "2")
    endpoints._down.clear()


def test_a_database_that_goes_down_is_reported_once(
    ada: Person, grant: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream goes on afterwards."""
    lease, _ = ada.take(grant)
    tried: list[bool] = []
    real = store.heads

    def failing(alias: str, names: Any) -> Any:
        tried.append(True)
        if len(tried) <= 3:
            raise BackendUnavailable("It is down.")
        return real(alias, names)

    monkeypatch.setattr(store, "heads", failing)
    monkeypatch.setattr(watching, "PAUSE", 0)

    async def main() -> None:
        chunks = await opened(ada, lease)
        await sync_to_async(eventually)(lambda: len(tried) > 4, "it does not ask again")
        await sync_to_async(ada.release)(lease)
        assert await event(chunks) == ("lost", {"id": lease, "reason": "released"})

    with caplog.at_level(logging.WARNING, "django_distlock.browser"):
        run(main)
    assert [record.levelname for record in caplog.records if record.name == "django_distlock.browser"] == ["WARNING"]


def test_a_thread_that_is_gone_is_replaced(ada: Person, grant: str) -> None:
    """R22: the child of a fork has the object of a thread that runs in its parent only, and no stream would ever get
    an event again."""
    lease, _ = ada.take(grant)
    watching.watcher._thread = threading.Thread()

    async def main() -> None:
        chunks = await opened(ada, lease)
        await sync_to_async(ada.release)(lease)
        assert await event(chunks) == ("lost", {"id": lease, "reason": "released"})

    run(main)


# a server of ASGI


@pytest.fixture
def site(crew: dict[str, Person]) -> Iterator[Site]:
    found = Site("tests.browserlocks.http.site", "postgres")
    yield found
    found.stop()


def connect(site: Site, stack: ExitStack) -> http.client.HTTPResponse:
    """A stream, as a browser of a visitor holds it."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)
    stack.callback(connection.close)
    connection.request("GET", path_of(new()), headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    stack.callback(response.close)
    assert response.status == 200
    return response


@pytest.mark.tier2
def test_a_stream_keeps_no_connection_to_the_database(site: Site) -> None:
    """Each browser has one stream: they would use up a server. The thread that watches has one connection."""
    with ExitStack() as stack:
        for _ in range(MOST_STREAMS):
            connect(site, stack).readline()
        eventually(lambda: sessions() <= 1, "connections are left")
        assert site.open()["streams"] == MOST_STREAMS
    eventually(lambda: sessions() == 0, "a connection is left")


@pytest.mark.tier2
def test_nothing_is_left_of_many_clients_that_went_away(site: Site) -> None:
    """They leave without a word, at every moment: before the answer has come, and after."""
    with ExitStack() as stack:
        connect(site, stack)
    eventually(lambda: site.open()["streams"] == 0, "the first stream is left")
    before = site.open()
    for number in range(100):
        with ExitStack() as stack:
            response = connect(site, stack)
            if number % 2:
                response.readline()
    for what in ("streams", "watchers"):
        eventually(lambda what=what: site.open()[what] == 0, f"{what} are left")
    for what in ("tasks", "threads"):
        eventually(lambda what=what: site.open()[what] <= before[what], f"{what} are left, before {before}")


def sessions() -> int:
    """Connections to the test database, but for those of this process."""
    with connections["postgres"].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])
