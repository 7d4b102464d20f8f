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
from django_distlock.browser import endpoints, events
from django_distlock.browser.events import MOST_STREAMS
from django_distlock.leases import queue, upkeep
from django_distlock.leases.records import named
from tests.browserlocks.people import EVENTS, Person, Tab, new
from tests.browserlocks.served import Site
from tests.conftest import PATIENCE, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.usefixtures("crew")


def path_of(*ids: str) -> str:
    return f"{EVENTS}?{urlencode([('id', each) for each in ids])}"


async def asked(person: Person, *ids: str) -> Any:
    """The response of ASGI to a browser of this person."""
    client = AsyncClient()
    client.cookies = person.client.cookies
    return await client.get(path_of(*ids))


async def opened(*tabs: Tab, person: Person | None = None) -> AsyncIterator[bytes]:
    """A stream of events that watches all of these."""
    response = await asked(person or tabs[0].person, *[tab.lease for tab in tabs])
    assert (response.status_code, response["Content-Type"]) == (200, "text/event-stream")
    chunks: AsyncIterator[bytes] = response.streaming_content
    assert f"{len(tabs)} watched" in (await anext(chunks)).decode()
    return chunks


async def event(chunks: AsyncIterator[bytes]) -> tuple[str, dict[str, Any]]:
    """The next event."""
    async with asyncio.timeout(PATIENCE):
        kind, data = (await anext(chunks)).decode().strip().split("\n")
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def released(tab: Tab) -> None:
    await sync_to_async(tab.release)()


async def is_told(tab: Tab) -> None:
    """Of the end of its lease."""
    chunks = await opened(tab)
    await released(tab)
    assert await event(chunks) == ("lost", {"id": tab.lease, "reason": "released"})


def test_a_turn_when_the_lock_is_free(mine: Tab, bo: Person) -> None:
    """Of the first one only; hidden tabs, whose places live long enough for a test that is late."""
    first, second = (bo.tab().wait(hidden=True) for _ in range(2))

    async def main() -> None:
        chunks = await opened(first, second)
        await released(mine)
        assert await event(chunks) == ("turn", {"id": first.lease})
        await released(first)
        assert await event(chunks) == ("turn", {"id": second.lease})

    asyncio.run(main())


def test_a_loss_and_the_next_turn(mine: Tab, bo: Person) -> None:
    """A tab that has lost its lease asks with the same id again, and opens no other stream for that."""
    theirs = bo.tab()

    async def main() -> None:
        chunks = await opened(mine)
        await sync_to_async(upkeep.break_lease)(named("default", "cart"), mine.fence)
        assert await event(chunks) == ("lost", {"id": mine.lease, "reason": "broken"})
        await sync_to_async(theirs.take)()
        await sync_to_async(mine.wait)(hidden=True)
        await released(theirs)
        assert await event(chunks) == ("turn", {"id": mine.lease})

    asyncio.run(main())


@pytest.mark.parametrize("atomic", [False, True])
def test_what_is_answered(ada: Person, bo: Person, monkeypatch: pytest.MonkeyPatch, atomic: bool) -> None:
    """Only what is the visitor's own; and no proxy collects or compresses it. With ATOMIC_REQUESTS Django refuses
    async views."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
    mine = ada.tab().take()

    async def main() -> None:
        response = await asked(bo, mine.lease, new())
        headers = ("Cache-Control", "X-Accel-Buffering", "Content-Encoding")
        assert [response[name] for name in headers] == ["no-store, no-transform", "no", "identity"]
        assert b"0 watched" in await anext(response.streaming_content)
        assert (await asked(ada, "'; DROP TABLE")).status_code == 400

    asyncio.run(main())
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

    asyncio.run(main())


def test_too_many_streams_of_one_principal(ada: Person, bo: Person) -> None:
    async def main() -> None:
        streams = [await opened(person=ada) for _ in range(MOST_STREAMS)]
        assert [(await asked(person)).status_code for person in (ada, bo)] == [429, 200]
        assert len(streams) == MOST_STREAMS

    asyncio.run(main())


def fails(*args: Any) -> Any:
    raise BackendUnavailable("It is down.")


def test_a_database_that_is_down(ada: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "names_of", fails)
    response = asyncio.run(asked(ada, new()))
    assert (response.status_code, response["Retry-After"]) == (503, "2")
    endpoints._down.clear()


def test_a_database_that_goes_down_is_reported_once(
    mine: Tab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream goes on afterwards."""
    answers = iter([fails] * 3)
    real = queue.heads
    monkeypatch.setattr(queue, "heads", lambda *asked: next(answers, real)(*asked))
    monkeypatch.setattr(events, "PAUSE", 0)

    with caplog.at_level(logging.WARNING, "django_distlock.browser"):
        asyncio.run(is_told(mine))
    assert next(answers, None) is None
    assert [record.levelname for record in caplog.records if record.name == "django_distlock.browser"] == ["WARNING"]


def test_r22_a_thread_that_is_gone_is_replaced(mine: Tab) -> None:
    """The child of a fork has the object of a thread that runs in its parent only, and no stream would ever get an
    event again."""
    events.watcher._thread = threading.Thread()

    asyncio.run(is_told(mine))


def connect(site: Site, stack: ExitStack) -> http.client.HTTPResponse:
    """A stream of a server of ASGI, as a browser of a visitor holds it."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=PATIENCE)
    stack.callback(connection.close)
    connection.request("GET", path_of(new()), headers={"Accept": "text/event-stream"})
    response = connection.getresponse()
    stack.callback(response.close)
    assert response.status == 200
    return response


def sessions() -> int:
    """Connections to the test database, but for those of this process."""
    with connections["postgres"].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        return int(cursor.fetchone()[0])


@pytest.mark.tier2
def test_streams_keep_no_connections_and_leave_nothing_behind() -> None:
    """Each browser has one stream: only the thread that watches has a connection to the database. Clients leave without
    a word, at every moment: before the answer has come, and after."""
    with Site("postgres") as site:
        with ExitStack() as stack:
            for _ in range(MOST_STREAMS):
                connect(site, stack).readline()
            eventually(lambda: sessions() <= 1, "connections are left")
            assert site.open()["streams"] == MOST_STREAMS
        eventually(lambda: site.open()["streams"] == 0, "streams are left")
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
        eventually(lambda: sessions() == 0, "a connection is left")
