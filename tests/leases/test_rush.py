"""Processes that rush: at the same articles, among writers that know no edit locks; and at the same names, some of them
killed, with a ledger outside the database as the judge."""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from django.db import DatabaseError, connections, transaction

from django_distlock.editing.records import EditConflict
from django_distlock.editing.resources import resource_of
from django_distlock.leases import queue
from django_distlock.leases.records import Busy, Lost, Row
from django_distlock.storage.dialect import contended
from testproject.articles.models import Article
from tests.browserlocks.store.tabs import Tab
from tests.editing.store.desks import Desk, expire, make_article, new_id, text_of, write_behind
from tests.support.places import READ_COMMITTED, REPEATABLE_READ, Place, isolate
from tests.support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.child import Link

pytestmark = pytest.mark.tier2

# articles

EDITORS, ARTICLES, EDITED_FOR = 6, 3, 2.0  # seconds


def edit(link: Link, place: tuple[str, str], pks: list[int], person: str) -> None:
    """Say the tokens of the saves and of the writes behind the lock, and how often others were first."""
    isolate(Place(*place))
    chance = random.Random(person)
    articles = list(Article.objects.using(place[0]).filter(pk__in=pks))
    saved, behind, tried = [], [], 0
    link.say("ready")
    link.hear()
    until = time.monotonic() + EDITED_FOR
    while time.monotonic() < until:
        article, token = chance.choice(articles), new_id()
        if chance.random() < 0.25:
            behind += [token] * _is_written_behind(article, token)
        else:
            tried += 1
            saved += [token] * _is_saved(chance, article, token, Desk(person))
    link.say([saved, behind, tried - len(saved)])


def _is_written_behind(article: Article, token: str) -> bool:
    try:
        write_behind(article, token)
    except DatabaseError as error:  # at REPEATABLE READ the command is told, and has written nothing
        if not contended(error):
            raise
        return False
    return True


def _is_saved(chance: random.Random, article: Article, token: str, desk: Desk) -> bool:
    """One form from its rendering to its save."""
    resource = resource_of(article)
    desk.open(article)
    kind = chance.random()
    if kind < 0.8:
        found = desk.take_over(resource) if kind < 0.05 else desk.claim(resource)
        if isinstance(found, Busy) and chance.random() < 0.7:
            return False
    time.sleep(chance.random() * 0.01)
    if chance.random() < 0.1:
        with suppress(DatabaseError):  # 40001 at REPEATABLE READ
            expire(resource)
    if chance.random() < 0.5 and desk.lease:
        desk.renew(resource)
    try:
        desk.save(token, lambda save: time.sleep(chance.random() * 0.005))
    except EditConflict:
        return False
    finally:
        if desk.lease and chance.random() < 0.8:
            desk.release(resource)
    return True


@pytest.mark.timeout(300)
def test_no_update_is_lost_and_no_save_vanishes(place: Place) -> None:
    """What was acknowledged is in the texts, and nothing else is."""
    articles = [make_article(place.alias) for _ in range(ARTICLES)]
    keys = [article.pk for article in articles]
    with ExitStack() as stack:
        people = [stack.enter_context(Child(edit, tuple(place), keys, f"person{number}")) for number in range(EDITORS)]
        for child in people:
            assert child.hear() == "ready"
        for child in people:
            child.say("go")
        told = [child.hear(timeout=EDITED_FOR + 60) for child in people]
    written = [token for saved, behind, _ in told for token in (*saved, *behind)]
    assert sorted(written) == sorted(token for article in articles for token in text_of(article).split(";")[1:])
    assert sum(len(saved) for saved, _, _ in told) > EDITORS
    assert any(late for _, _, late in told)


# names

TABS, RUSH, KILLED = 8, 3.0, 3
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
            for number in range(TABS)
        ]
        for child in crowd:
            assert child.hear() == "ready"
        for child in crowd:
            child.say(RUSH)
        for child in crowd[:KILLED]:
            time.sleep(RUSH / (KILLED + 1) * random.uniform(0.5, 1))
            child.kill()
        sections = [child.hear(timeout=RUSH + 60) for child in crowd[KILLED:]]
    judge(ledger.read_text().splitlines(), names)
    assert sum(sections) > TABS


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
