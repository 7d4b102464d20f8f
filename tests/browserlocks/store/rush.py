"""Processes that want the same names as fast as they can, and the ledger in which each writes what it does."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

from django.db import connections, transaction

from django_distlock.browser.records import BrowserLease, LeaseLost
from django_distlock.browser.store import queue
from django_distlock.storage.dialect import contended
from tests.browserlocks.store.tabs import Tab
from tests.support.places import Place, isolate
from tests.support.sizes import be_polite

if TYPE_CHECKING:
    from tests.support.child import Link

TTL = 0.3


class Ledger:
    """A file to which all processes append, each line in one write: what is in it has happened, also before a kill."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def tick(self, tab: Tab, at: int | None = None) -> None:
        """``tab`` works in its section now. The clock is that of the host, the same for all processes."""
        os.write(self._file, f"{at or time.monotonic_ns()} {tab.name} {tab.fence} {tab.lease}\n".encode())


def rush(link: Link, place: tuple[str, str], names: list[str], person: str, ledger: str, seed: str) -> None:
    """Want names until the parent ends this process, or says so."""
    be_polite()
    isolate(Place(*place))
    queue.GRACE = 0.2
    chance, book = random.Random(seed), Ledger(ledger)
    link.say("ready")
    seconds = float(link.hear())
    until = time.monotonic() + seconds
    sections = 0
    while time.monotonic() < until:
        sections += section(chance, Tab(place[0], chance.choice(names), person), book, until)
    link.say(sections)


def section(chance: random.Random, tab: Tab, book: Ledger, until: float) -> int:
    """Wait for the name, work in it for as long as the lease is valid at most, and mostly give it back."""
    while True:
        asked = time.monotonic()
        found = tab.ask(ttl=TTL, interval=0.05)
        if isinstance(found, BrowserLease):
            break
        if time.monotonic() > until:
            tab.leave()
            return 0
        time.sleep(0.01 * chance.random())
    valid = asked + found.expires_in
    for _ in range(chance.randrange(1, 6)):
        at = time.monotonic_ns()  # the moment that is looked at is the one that is written down
        if at < (valid - 0.001) * 1e9:
            book.tick(tab, at)
        kind = chance.random()
        if kind < 0.1:
            protected(chance, tab, book)
        elif kind < 0.4:
            asked = time.monotonic()
            renewed = tab.renew(TTL)
            if isinstance(renewed, LeaseLost):
                return 1
            valid = asked + renewed.expires_in
        elif kind < 0.43:
            time.sleep(TTL * chance.uniform(0.8, 1.5))
        time.sleep(0.004 * chance.random())
    if chance.random() < 0.9:
        tab.release()
    return 1


def protected(chance: random.Random, tab: Tab, book: Ledger) -> None:
    """A request under the lock: it may work until it commits, whatever becomes of the lease meanwhile."""
    try:
        with transaction.atomic(using=tab.alias):
            if tab.lock() is None:
                return
            book.tick(tab)
            time.sleep(chance.choice((0.002, 0.01, TTL * 1.2 if tab.alias != "default" else 0.0)))
            book.tick(tab)
    except Exception as error:
        if not contended(error):
            raise
        connections[tab.alias].close()
