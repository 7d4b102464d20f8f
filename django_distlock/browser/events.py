"""``GET leases/events/``: server-sent events, so that a browser need not ask often. On ASGI only.

A stream of WSGI would keep a worker. Events cost no promise if they get lost: the client asks slowly beside the stream.
One thread per process asks the database about the names of all streams at once, and leaves no connection behind.
Format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import Error, connections
from django.http import HttpResponse, StreamingHttpResponse

from django_distlock import BackendUnavailable
from django_distlock.concurrency import clock
from django_distlock.http.bodies import private
from django_distlock.http.transactions import outside_transactions
from django_distlock.leases import queue
from django_distlock.leases.records import Head, holder_of
from django_distlock.storage.values import ID

from .conf import config
from .endpoints import bad_request, method_not_allowed, refused, unavailable
from .requests import Sender

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from django.http import HttpRequest
    from django.http.response import HttpResponseBase

logger = logging.getLogger("django_distlock.browser")
PERIOD = 0.1  # seconds between two questions to the database
PAUSE = 1.0  # seconds, while it is down
HEARTBEAT = 15.0  # seconds of silence that no proxy takes for the end
# Seconds after which the browser has to connect again, and shows again who it is. A log-out ends the stream by then.
LIFETIME = 300.0
RECONNECT = 1000  # milliseconds
MOST_STREAMS = 20  # of one principal in one process; a burst may open more


@outside_transactions
async def events_view(request: HttpRequest) -> HttpResponseBase:
    """The stream for the leases ``?id=...&id=...`` of the sender."""
    if request.method != "GET":
        return method_not_allowed("GET")
    if not isinstance(request, ASGIRequest):
        # on WSGI each stream would keep a worker: the client polls. No error status, which Django would report as one
        return private(HttpResponse(status=204))
    ids = request.GET.getlist("id")
    if not all(ID.fullmatch(lease) for lease in ids):
        return bad_request("id is the id of a lease.")
    opened = await sync_to_async(_opened)(request, ids)
    if isinstance(opened, HttpResponse):
        return opened
    stream = private(StreamingHttpResponse(opened.frames(), content_type="text/event-stream"))
    stream["Cache-Control"] = "no-store, no-transform"
    # nginx would collect the events, and compress them: it does neither with these
    stream["X-Accel-Buffering"] = "no"
    stream["Content-Encoding"] = "identity"
    return stream


events_view.login_required = False  # type: ignore[attr-defined]


def _opened(request: HttpRequest, ids: list[str]) -> Stream | HttpResponse:
    """The stream, or the refusal."""
    try:
        sender = Sender.of(request)
        settings, principal = sender.settings, sender.principal
        if watcher.count(principal) >= MOST_STREAMS:
            return refused(429, "quota")
        most = (settings.max_held or 1000) + (settings.max_waiting or 1000)
        return Stream(principal, queue.names_of(settings.database, principal, ids[:most]))
    except (Error, BackendUnavailable):
        return unavailable()
    finally:
        # the thread of this request lives as long as the stream, and needs no connection any more
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()


class Stream:
    """What one browser watches. The thread puts heads of queues into it; the event loop makes events of them."""

    def __init__(self, principal: str, found: dict[str, tuple[str, bool]]) -> None:
        """Watch leases and places of one principal: ``found`` is what :func:`queue.names_of` has returned."""
        self.principal = principal
        self.names = {lease: name for lease, (name, _) in found.items()}
        self._held = {lease for lease, (_, is_held) in found.items() if is_held}
        self._seen: dict[str, Head] = {}

    async def frames(self) -> AsyncIterator[bytes]:
        """What is sent, until the browser leaves or the stream has lived for long enough."""
        self._loop, self._news = asyncio.get_running_loop(), asyncio.Queue[dict[str, Head]]()
        watcher.add(self)
        end = clock.now() + LIFETIME
        try:
            yield f"retry: {RECONNECT}\n: {len(self.names)} watched\n\n".encode()
            while (left := end - clock.now()) > 0:
                try:
                    news = await asyncio.wait_for(self._news.get(), min(HEARTBEAT, left))
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                for kind, facts in self._events(news):
                    yield f"event: {kind}\ndata: {json.dumps(facts)}\n\n".encode()
        finally:
            watcher.discard(self)

    def show(self, heads: dict[str, Head]) -> None:
        """Hand on what the database says of the names, if it is news; called by the thread."""
        news = {name: head for name, head in heads.items() if head != self._seen.get(name)}
        if news:
            self._seen |= news
            try:
                self._loop.call_soon_threadsafe(self._news.put_nowait, news)
            except RuntimeError:  # the loop is closed: the stream is gone
                watcher.discard(self)

    def _events(self, news: dict[str, Head]) -> Iterator[tuple[str, dict[str, str]]]:
        """What the client has to know."""
        for lease in [lease for lease, name in self.names.items() if name in news]:
            head, me = news[self.names[lease]], holder_of(lease, self.principal)
            if head.holder == me:
                self._held.add(lease)
            elif lease in self._held:
                self._held.discard(lease)  # its tab may ask for it again, and then waits with the same id
                yield "lost", {"id": lease, "reason": head.why(lease)}
            if not head.holder and head.first == me:
                yield "turn", {"id": lease}


class Watcher:
    """The streams of this process, and the thread, which runs while there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: set[Stream] = set()
        self._thread: threading.Thread | None = None

    def add(self, stream: Stream) -> None:
        with self._lock:
            self._streams.add(stream)
            if self._thread is None or not self._thread.is_alive():  # after a fork it runs in the parent only
                self._thread = threading.Thread(target=self._run, name="distlock-browser-events", daemon=True)
                self._thread.start()

    def discard(self, stream: Stream) -> None:
        """Harmless if it has ended."""
        with self._lock:
            self._streams.discard(stream)

    def count(self, principal: str) -> int:
        """How many streams the principal has in this process."""
        with self._lock:
            streams = list(self._streams)
        return sum(stream.principal == principal for stream in streams)

    def _run(self) -> None:
        down, pause = False, threading.Event()
        try:
            while streams := self._present():
                try:
                    self._look(streams)
                    down = False
                except Exception:  # of any kind: without this thread no stream would ever get an event again
                    connections.close_all()
                    if not down:
                        logger.warning("The browser locks cannot be read; no events until then.", exc_info=True)
                    down = True
                pause.wait(PAUSE if down else PERIOD)
        finally:
            connections.close_all()

    def _present(self) -> list[Stream]:
        """The streams; if there is none left the thread has to end."""
        with self._lock:
            if not self._streams:
                self._thread = None
            return list(self._streams)

    @staticmethod
    def _look(streams: list[Stream]) -> None:
        names = sorted({name for stream in streams for name in stream.names.values()})
        heads = queue.heads(config().database, names)
        for stream in streams:
            stream.show({name: heads[name] for name in stream.names.values()})


watcher = Watcher()
