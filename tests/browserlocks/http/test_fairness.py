"""Over real HTTP, with several processes: first come first served, hand-over, load, and exclusion while servers die."""

from __future__ import annotations

import heapq
import json
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock.browser.http.actions import interval_of
from testproject.replay.server import Server
from tests.browserlocks.http.crowd import (
    UNREACHABLE,
    Browser,
    Holding,
    Ledger,
    counted,
    make_users,
    remove_users,
    take_turns,
)
from tests.browserlocks.http.people import new
from tests.conftest import eventually
from tests.support.sizes import LONG
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORKERS, WAITERS, ROUNDS = 3, 10, 20 if LONG else 10
GRACE = 10.0  # seconds that a ticket lives on, so that a busy machine makes nobody lose a place
CROWD, WINDOW = 1000, 30.0 if LONG else 15.0
HOLD = 0.03  # seconds
ENGINES = {"postgres": "postgres", "mariadb": "mariadb", "sqlite": "default"}

pytestmark = [pytest.mark.long, pytest.mark.tier2]


@pytest.fixture(scope="module", params=ENGINES if LONG else ["postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    engine: str = request.param
    return engine


@pytest.fixture(scope="module")
def count(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("count") / "requests"


@pytest.fixture(scope="module")
def environment(engine: str, count: Path, django_db_setup: None) -> Iterator[None]:
    """What server processes of this module get."""
    given = {
        "DB": engine,
        "DISTLOCK_DEMO_DB": str(connections[ENGINES[engine]].settings_dict["NAME"]),
        "DISTLOCK_CONN_MAX_AGE": "60",
        "DISTLOCK_TEST_COUNT": str(count),
        "DISTLOCK_TEST_BROWSER": json.dumps({"MAX_WAITING": None, "TTL": 3}),
        "DISTLOCK_TEST_GRACE": str(GRACE),
        "DJANGO_SETTINGS_MODULE": "tests.browserlocks.http.served_settings",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def server(environment: None) -> Iterator[Server]:
    with Server(workers=WORKERS, threads=8) as running:
        yield running


@pytest.fixture
def browsers(engine: str, server: Server, databases: None) -> Iterator[list[Browser]]:
    alias = ENGINES[engine]
    remove_users(alias)
    try:
        yield [Browser(server.port, cookies) for cookies in make_users(alias, WAITERS)]
    finally:
        remove_users(alias)


def run(browsers: list[Browser], name: str, until: Any, hold: Any = lambda: HOLD) -> Ledger:
    """Let the browsers compete until ``until(ledger)``."""
    ledger, stop = Ledger(), threading.Event()
    with ThreadPoolExecutor(len(browsers)) as pool:
        tasks = [
            pool.submit(take_turns, browser, who, name, ledger, stop, hold) for who, browser in enumerate(browsers)
        ]
        try:
            eventually(lambda: until(ledger) or any(task.done() for task in tasks), "it goes on", 110, pause=0.02)
        finally:
            stop.set()
        for task in tasks:
            task.result(60)
    return ledger


def test_ten_waiters_are_served_in_turn(browsers: list[Browser]) -> None:
    """Fair, and the next one has the lock within one and a half of its intervals."""
    ledger = run(browsers, "cart", lambda ledger: len(ledger.holdings) >= WAITERS * (ROUNDS + 1))
    assert not ledger.overlaps()
    fences = [holding.fence for holding in ledger.holdings]
    assert fences == sorted(set(fences))
    # in the first round not all of them are there yet
    shares = ledger.shares(WAITERS, WAITERS * (ROUNDS + 1))
    assert len(shares) == WAITERS
    print(f"shares {shares}, hand-over p50 {ledger.slowest(0.5):.3f} s, p99 {ledger.slowest(0.99):.3f} s")
    assert shares[0] / shares[-1] >= 0.9
    within(ledger.slowest(0.99), 1.5 * interval_of(1, hidden=False), what="the hand-over")


def test_a_waiter_that_stopped_asking_is_passed_over(browsers: list[Browser]) -> None:
    """After two of its intervals and the grace, as the database counts them; not before."""
    holder, silent, other = browsers[:3]
    lease, waiting = new(), new()
    assert holder.acquire(holder.grant("cart"), lease)[0] == 201
    grant = silent.grant("cart")
    asked = time.monotonic()
    assert silent.acquire(grant, new())[0] == 409
    assert other.acquire(other.grant("cart"), waiting)[0] == 409
    holder.release(lease)
    while other.acquire(other.grant("cart"), waiting, again=True)[0] != 201:
        time.sleep(0.05)
    life = 2 * interval_of(0, hidden=False) + GRACE
    within(time.monotonic() - asked, life + 4, least=life, what="being passed over")


def test_a_thousand_waiters(browsers: list[Browser], count: Path) -> None:
    """On one lock they send less than 200 requests a second, all together; counted at the server."""
    holder, lease = browsers[0], new()
    grants = [browser.grant("cart") for browser in browsers]
    assert holder.acquire(grants[0], lease)[0] == 201
    stop = threading.Event()
    due: list[tuple[float, int, str, bool]] = [(0.0, number, new(), False) for number in range(CROWD)]
    lock = threading.Lock()

    def hold() -> None:
        """The holder renews by asking again with the same id."""
        while not stop.wait(0.5):
            assert holder.acquire(grants[0], lease)[0] == 201

    def ask() -> None:
        while not stop.is_set():
            with lock:
                if not due:
                    continue
                at, number, lease, again = heapq.heappop(due)
            if stop.wait(max(0.0, at - time.monotonic())):
                return
            browser = browsers[number % WAITERS]
            status, facts = browser.acquire(grants[number % WAITERS], lease, again=again)
            assert status == 409, facts
            later = time.monotonic() + facts["retry_after"] * random.uniform(0.8, 1.2)
            with lock:
                heapq.heappush(due, (later, number, lease, True))

    with ThreadPoolExecutor(9) as pool:
        tasks = [pool.submit(hold), *(pool.submit(ask) for _ in range(8))]
        try:
            eventually(lambda: all(again for _, _, _, again in list(due)), "not all have asked", 60, pause=0.05)
            before, began = counted(count), time.monotonic()
            stop.wait(WINDOW)
            rate = (counted(count) - before) / (time.monotonic() - began)
        finally:
            stop.set()
        for task in tasks:
            task.result(60)
    print(f"{rate:.0f} requests a second")
    assert 20 < rate < 200


class TestWhileServersDie:
    def test_no_two_hold_the_lock(self, environment: None, engine: str, databases: None) -> None:
        """Processes are killed in the middle of requests, and the whole server is started anew."""
        alias = ENGINES[engine]
        remove_users(alias)
        with Server(workers=WORKERS, threads=4) as first:
            browsers = [Browser(first.port, cookies) for cookies in make_users(alias, 6)]
            for browser in browsers:
                browser.grant("cart")
            done = threading.Event()
            killer = threading.Thread(target=kill_workers, args=(first.process.pid, done))
            killer.start()
            ledger, stop = Ledger(), threading.Event()
            pool = ThreadPoolExecutor(len(browsers))
            tasks = [
                pool.submit(take_turns, browser, who, "cart", ledger, stop, lambda: random.uniform(0, 0.1))
                for who, browser in enumerate(browsers)
            ]
            try:
                eventually(lambda: len(ledger.holdings) >= 10, "nothing is granted while processes are killed", 60)
            finally:
                done.set()
                killer.join(30)
        served = len(ledger.holdings)
        with Server(workers=WORKERS, threads=4, port=first.port):
            try:
                eventually(lambda: len(ledger.holdings) >= served + 10, "nothing is granted after the restart", 60)
            finally:
                stop.set()
                for task in tasks:
                    task.result(60)
                pool.shutdown()
        assert not ledger.overlaps()
        fences = [holding.fence for holding in sorted(ledger.holdings, key=lambda holding: holding.began)]
        assert fences == sorted(set(fences))
        remove_users(alias)

    def test_the_judge_sees_an_overlap(self) -> None:
        ledger = Ledger()
        ledger.holdings = [Holding(0, 1, 0.0, 1.0), Holding(1, 2, 0.9, 2.0), Holding(0, 3, 2.0, 3.0)]
        assert len(ledger.overlaps()) == 1
        assert UNREACHABLE == 0


def kill_workers(parent: int, done: threading.Event) -> None:
    """kill -9 one process of the server after the other; the server starts new ones."""
    import psutil

    while not done.wait(random.uniform(0.3, 0.8)):
        workers = psutil.Process(parent).children()
        if workers:
            os.kill(random.choice(workers).pid, signal.SIGKILL)
