"""What streams of events wait for: one thread per process asks the database about all watched names at once."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from django.db import connections

from django_distlock.browser import store
from django_distlock.browser.records import holder_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_distlock.browser.records import Head

logger = logging.getLogger("django_distlock.browser")
PERIOD = 0.1  # seconds between two questions
PAUSE = 1.0  # seconds, while the database is down
Event = tuple[str, dict[str, str]]


class Watch:
    """The leases and places of one stream. The thread tells it what it sees; the event loop takes the news."""

    def __init__(self, alias: str, principal: str, names: Mapping[str, tuple[str, bool]]) -> None:
        """Watch leases and places of one principal: ``names`` is what :func:`store.names_of` has found."""
        self.alias = alias
        self.principal = principal
        self.names = {lease: name for lease, (name, _) in names.items()}
        self._held = {lease for lease, (_, is_held) in names.items() if is_held}
        self._holders = {lease: holder_of(lease, principal) for lease in names}
        self._loop = asyncio.get_running_loop()
        self._news: list[Event] = []
        self._arrived = asyncio.Event()
        self._called: set[str] = set()

    def look(self, heads: Mapping[str, Head]) -> None:
        """Compare what the database says with what the client knows; called by the thread."""
        news: list[Event] = []
        for lease, name in list(self.names.items()):
            head, me = heads[name], self._holders[lease]
            if head.holder == me:
                self._held.add(lease)
            elif lease in self._held:
                self._held.discard(lease)  # its tab may ask for it again, and then waits with the same id
                news.append(("lost", {"id": lease, "reason": head.why(lease)}))
            if head.holder or head.first != me:
                self._called.discard(lease)
            elif lease not in self._called:
                self._called.add(lease)
                news.append(("turn", {"id": lease}))
        if news:
            try:
                self._loop.call_soon_threadsafe(self._receive, news)
            except RuntimeError:  # the loop is closed: the stream is gone
                watcher.discard(self)

    def _receive(self, news: list[Event]) -> None:
        self._news += news
        self._arrived.set()

    async def next(self, timeout: float) -> list[Event]:
        """The news; none after ``timeout`` seconds."""
        try:
            await asyncio.wait_for(self._arrived.wait(), timeout)
        except TimeoutError:
            return []
        self._arrived.clear()
        news, self._news = self._news, []
        return news


class Watcher:
    """The thread of this process. It runs while there is a stream, and leaves no connection behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: set[Watch] = set()
        self._thread: threading.Thread | None = None

    def add(self, watch: Watch) -> None:
        """Begin to watch."""
        with self._lock:
            self._watches.add(watch)
            if self._thread is None or not self._thread.is_alive():  # after a fork it runs in the parent only
                self._thread = threading.Thread(target=self._run, name="distlock-browser-events", daemon=True)
                self._thread.start()

    def discard(self, watch: Watch) -> None:
        """End to watch; harmless if it has ended."""
        with self._lock:
            self._watches.discard(watch)

    def count(self, principal: str) -> int:
        """How many streams the principal has in this process."""
        with self._lock:
            return sum(watch.principal == principal for watch in self._watches)

    def _run(self) -> None:
        try:
            down = False
            pause = threading.Event()
            while (watches := self._present()) is not None:
                try:
                    self._look(watches)
                    down = False
                except Exception:  # of any kind: without this thread no stream would ever get an event again
                    connections.close_all()
                    if not down:
                        logger.warning("The browser locks cannot be read; no events until then.", exc_info=True)
                    down = True
                pause.wait(PAUSE if down else PERIOD)
        finally:
            connections.close_all()

    def _present(self) -> list[Watch] | None:
        """The streams; None if there is none left, and the thread has to end."""
        with self._lock:
            if not self._watches:
                self._thread = None
                return None
            return list(self._watches)

    def _look(self, watches: list[Watch]) -> None:
        for alias in {watch.alias for watch in watches}:
            mine = [watch for watch in watches if watch.alias == alias]
            names = sorted({name for watch in mine for name in watch.names.values()})
            heads = store.heads(alias, names) if names else {}
            for watch in mine:
                watch.look(heads)


watcher = Watcher()
