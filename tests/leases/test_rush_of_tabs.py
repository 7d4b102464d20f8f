"""Processes at the same names at once, some of them killed. A ledger outside the database judges."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction

from django_distlock.leases import queue
from django_distlock.leases.records import Lost, Row
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
            stack.enter_context(Child(rush, tuple(place), names, f"person{number}", str(ledger)))
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


# in the other processes


def rush(link: Link, place: tuple[str, str], names: list[str], person: str, ledger: str) -> None:
    """Want names until the parent ends this process, or says so."""
    os.nice(10)  # the parent goes first
    isolate(Place(*place))
    queue.GRACE = 0.2
    # what is in the file has happened, also before a kill: each line is one write
    book = os.open(ledger, os.O_WRONLY | os.O_APPEND)
    link.say("ready")
    until = float(link.hear()) + time.monotonic()
    sections = 0
    while time.monotonic() < until:
        sections += section(Tab(place[0], random.choice(names), person), book, until)
    link.say(sections)


def tick(book: int, tab: Tab, at: int) -> None:
    """The tab works in its section at this moment, by the clock of the host, the same for all processes."""
    os.write(book, f"{at} {tab.name} {tab.fence} {tab.lease}\n".encode())


def section(tab: Tab, book: int, until: float) -> int:
    """Wait for the name, work in it for as long as the lease is valid at most, and mostly give it back."""
    asked = time.monotonic()
    while not isinstance(found := tab.ask(ttl=TTL, interval=0.05), Row):
        if time.monotonic() > until:
            tab.leave()
            return 0
        time.sleep(0.01 * random.random())
        asked = time.monotonic()
    valid = asked + found.expires_in
    for _ in range(random.randrange(1, 6)):
        at = time.monotonic_ns()  # the moment that is looked at is the one that is written down
        if at < (valid - 0.001) * 1e9:
            tick(book, tab, at)
        kind = random.random()
        if kind < 0.1:
            protected(tab, book)
        elif kind < 0.4:
            asked = time.monotonic()
            if isinstance(renewed := tab.renew(TTL), Lost):
                return 1
            valid = asked + renewed.expires_in
        elif kind < 0.43:
            time.sleep(TTL * random.uniform(0.8, 1.5))
        time.sleep(0.004 * random.random())
    if random.random() < 0.9:
        tab.release()
    return 1


def protected(tab: Tab, book: int) -> None:
    """A request under the lock: it may work until it commits, whatever becomes of the lease meanwhile."""
    try:
        with transaction.atomic(using=tab.alias):
            if tab.lock() is None:
                return
            tick(book, tab, time.monotonic_ns())
            time.sleep(random.choice((0.002, 0.01, TTL * 1.2 if tab.alias != "default" else 0.0)))
            tick(book, tab, time.monotonic_ns())
    except Exception as error:
        if not contended(error):
            raise
        connections[tab.alias].close()
