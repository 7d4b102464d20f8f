"""Processes at the same names at once, some of them killed. A ledger outside the database judges."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction

from django_distlock.browser.records import BrowserLease, LeaseLost
from django_distlock.browser.store import queue
from django_distlock.storage.dialect import contended
from tests.browserlocks.store.tabs import Tab, new_id
from tests.support.places import READ_COMMITTED, REPEATABLE_READ, Place, isolate
from tests.support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.child import Link

pytestmark = pytest.mark.tier2
PROCESSES, SECONDS, KILLED = 8, 3.0, 3
TTL = 0.3
PLACES = [Place("default", ""), Place("postgres", READ_COMMITTED), Place("mariadb", REPEATABLE_READ)]  # the usual ones


@pytest.mark.parametrize("place", PLACES, ids=str, indirect=True)
def test_one_at_a_time_whatever_is_killed(place: Place, tmp_path: Path) -> None:
    """In the order of the clock the fences of a name never fall: none works after a later one has begun."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    names = [f"piece:{new_id()}" for _ in range(2)]
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(Child(rush, tuple(place), names, f"person{number}", str(ledger), f"{number}"))
            for number in range(PROCESSES)
        ]
        for child in crowd:
            assert child.hear() == "ready"
        for child in crowd:
            child.say(SECONDS)
        for child in crowd[:KILLED]:
            time.sleep(SECONDS / (KILLED + 1) * random.uniform(0.5, 1))
            child.kill()
        sections = [child.hear(timeout=SECONDS + 60) for child in crowd[KILLED:]]
    judge(ledger.read_text().splitlines(), names)
    assert sum(sections) > PROCESSES


def judge(lines: list[str], names: list[str]) -> None:
    """Fail if a tick has a lower fence than one before it, or two leases have one fence."""
    ticks = sorted((int(at), name, int(fence), lease) for at, name, fence, lease in map(str.split, lines))
    leases: dict[tuple[str, int], str] = {}
    latest = dict.fromkeys(names, 0)
    for at, name, fence, lease in ticks:
        assert leases.setdefault((name, fence), lease) == lease
        assert fence >= latest[name], f"{lease} works at {at}, after a later holder had begun"
        latest[name] = fence
    assert len(leases) > len(names)


def test_the_judge_sees_two_at_once() -> None:
    judge(["1 a 5 x", "2 a 5 x", "3 a 6 y", "4 b 1 z"], ["a", "b"])
    with pytest.raises(AssertionError, match="after a later holder"):
        judge(["1 a 5 x", "2 a 6 y", "3 a 5 x"], ["a"])
    with pytest.raises(AssertionError):
        judge(["1 a 5 x", "2 a 5 y"], ["a"])


# in the other processes


class Ledger:
    """A file to which all processes append, each line in one write: what is in it has happened, also before a kill."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)

    def tick(self, tab: Tab, at: int | None = None) -> None:
        """``tab`` works in its section now. The clock is that of the host, the same for all processes."""
        os.write(self._file, f"{at or time.monotonic_ns()} {tab.name} {tab.fence} {tab.lease}\n".encode())


def rush(link: Link, place: tuple[str, str], names: list[str], person: str, ledger: str, seed: str) -> None:
    """Want names until the parent ends this process, or says so."""
    os.nice(10)  # the parent goes first
    isolate(Place(*place))
    queue.GRACE = 0.2
    chance, book = random.Random(seed), Ledger(ledger)
    link.say("ready")
    until = float(link.hear()) + time.monotonic()
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
