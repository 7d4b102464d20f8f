"""The same request many times at once: in threads at one barrier, and duplicates that come while the first one runs."""

from __future__ import annotations

import asyncio
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.test import AsyncClient

from django_distlock import LockNotAcquired
from django_distlock.idempotency import signals
from django_distlock.idempotency.records import Claim
from django_distlock.idempotency.storage import storage_of
from tests.conftest import eventually
from tests.idempotency.conftest import Sender, every_database, states
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.idempotency.views import Stage

CROWD = 8


def at_once(act: Callable[[], Any], times: int = CROWD) -> list[Any]:
    """What ``act`` gives in each of as many threads, that begin together."""
    barrier = threading.Barrier(times)

    def run() -> Any:
        try:
            barrier.wait(10)
            return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(times) as pool:
        return [future.result(60) for future in [pool.submit(run) for _ in range(times)]]


@pytest.fixture(params=[False, True], ids=["", "ATOMIC_REQUESTS"])
def in_transactions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, alias: str) -> None:
    monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", request.param)


def test_naive_code_acts_several_times(site: Stage, key: str) -> None:
    """Look, then act: what the peers do. Everybody looks before the first one has acted."""
    seen: dict[str, bool] = {}
    barrier = threading.Barrier(CROWD)

    def naive() -> None:
        if key not in seen:
            barrier.wait(10)
            rows.write("default", site.name)
            seen[key] = True

    at_once(naive)
    assert site.effects == CROWD


@every_database
@pytest.mark.usefixtures("in_transactions")
@pytest.mark.parametrize("shape", ["plain", "atomic", "decorated"])
def test_duplicates_at_one_barrier_act_once(site: Stage, key: str, shape: str) -> None:
    answers = at_once(lambda: Sender(key).post(shape))
    statuses = sorted(answer.status_code for answer in answers)
    assert set(statuses) <= {201, 409}
    assert 201 in statuses
    assert all(answer.json() == {"run": 1} for answer in answers if answer.status_code == 201)
    assert site.effects == 1
    assert len(site.runs) == 1


class Running:
    """A first request that has acted and does not answer yet."""

    def __init__(self, site: Stage, key: str, shape: str, data: Any = None) -> None:
        self.acted, self.go_on = threading.Event(), threading.Event()
        self.answer: Any = None

        def pause(request: Any) -> None:
            self.acted.set()
            assert self.go_on.wait(20)

        def run() -> None:
            try:
                self.answer = Sender(key).post(shape, data)
            finally:
                connections.close_all()

        site.during = pause
        self.thread = threading.Thread(target=run)

    def __enter__(self) -> Running:
        self.thread.start()
        assert self.acted.wait(20)
        return self

    def __exit__(self, *error: object) -> None:
        self.go_on.set()
        self.thread.join(20)


servers = pytest.mark.parametrize("alias", ["postgres", "mariadb"])


@servers
@pytest.mark.usefixtures("in_transactions")
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_in_flight_is_answered_at_once(site: Stage, sender: Sender, key: str, shape: str) -> None:
    """Naive code: an INSERT of the same key waits for the first one's commit."""
    with Running(site, key, shape) as running:
        second = sender.post(shape)
        assert (second.status_code, second.json()["code"]) == (409, "in_flight")
        assert second["Retry-After"] == "1"
        assert running.answer is None, "it waited for the first one"
    assert running.answer.status_code == 201
    assert sender.post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


@servers
def test_on_conflict_do_nothing_alone_would_wait(site: Stage, key: str) -> None:
    """What the lock in front is for."""
    limit = {"postgres": "SET lock_timeout = '100ms'", "mariadb": "SET innodb_lock_wait_timeout = 1"}[site.alias]
    claim = Claim(scope=scope_of(key), owner="o", fingerprint="f", claim_ttl=1, ttl=1)
    with Running(site, key, "atomic"), connections[site.alias].cursor() as cursor:
        cursor.execute(limit)
        with pytest.raises(LockNotAcquired) as caught:
            storage_of(site.alias).claim(claim)
        assert re.search(r"lock timeout|Lock wait timeout", str(caught.value.__cause__))
    connections[site.alias].close()


def scope_of(key: str) -> str:
    from django_distlock.idempotency import engine
    from tests.conftest import SITE_KEY

    return engine.scope_of(SITE_KEY, "Bearer a", "POST", "atomic/", key)


@servers
@pytest.mark.parametrize("shape", ["waiting", "atomic_waiting"])
def test_a_duplicate_may_wait_for_the_answer(site: Stage, key: str, shape: str) -> None:
    with Running(site, key, shape) as running, ThreadPoolExecutor(1) as pool:
        looked = threading.Event()

        def second() -> Any:
            looked.set()
            try:
                return Sender(key).post(shape)
            finally:
                connections.close_all()

        future = pool.submit(second)
        assert looked.wait(10)
        running.go_on.set()
        answer = future.result(20)
    assert (answer.status_code, answer["Idempotency-Replayed"]) == (201, "true")
    assert site.effects == 1


def test_one_with_other_data_is_a_mismatch_at_once(site: Stage, sender: Sender, key: str) -> None:
    with Running(site, key, "plain"):
        assert sender.post("plain", {"other": 1}).status_code == 422


@servers
@pytest.mark.parametrize("shape", ["form", "atomic_form"])
def test_a_person_waits_on_a_page_that_goes_on_by_itself(site: Stage, shape: str) -> None:
    from tests.idempotency.test_forms import Browser
    from tests.idempotency.views import redirect

    site.answer = redirect
    browser = Browser()
    fields = browser.open(shape)
    acted, go_on = threading.Event(), threading.Event()
    site.during = lambda request: acted.set() or go_on.wait(20)

    def first() -> None:
        browser.send(fields, shape)
        connections.close_all()

    thread = threading.Thread(target=first)
    thread.start()
    assert acted.wait(20)
    try:
        waiting = Browser()
        waiting.client.cookies.update(browser.client.cookies)
        page = waiting.send(fields, shape)
        assert (page.status_code, page["Retry-After"]) == (409, "2")
        url = page["Refresh"].partition("url=")[2]
        assert "Still working" in waiting.client.get(url).content.decode()
        stranger = Browser()
        stranger.open()
        assert "Still working" not in stranger.client.get(url).content.decode()
    finally:
        go_on.set()
        thread.join(20)
    done = waiting.client.get(url)
    assert (done.status_code, done["Location"]) == (302, "/made/1/")
    assert site.effects == 1


@servers
def test_the_waiting_page_tells_of_a_failure(site: Stage) -> None:
    """The first request broke off: nothing was saved, and the page says so."""
    from tests.idempotency.test_forms import Browser

    browser = Browser()
    fields = browser.open("atomic_form")
    acted, go_on = threading.Event(), threading.Event()

    def fail(request: Any) -> None:
        acted.set()
        go_on.wait(20)
        raise RuntimeError("boom")

    site.during = fail
    browser.client.raise_request_exception = False

    def first() -> None:
        browser.send(fields, "atomic_form")
        connections.close_all()

    thread = threading.Thread(target=first)
    thread.start()
    assert acted.wait(20)
    other = Browser()
    other.client.cookies.update(browser.client.cookies)
    url = other.send(fields, "atomic_form")["Refresh"].partition("url=")[2]
    go_on.set()
    thread.join(20)
    assert "Not saved" in other.client.get(url).content.decode()


@pytest.mark.parametrize("alias", ["mariadb"])
def test_repeatable_read_on_mariadb(site: Stage, sender: Sender) -> None:
    """A transaction that has read before does not see the winner's commit, but for a locking read."""
    from tests.idempotency.views import SHAPES

    first = sender.post("atomic")
    view = SHAPES["atomic"]
    connection = connections["mariadb"]
    connection.ensure_connection()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_distlock_idempotency")
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        with warnings.catch_warnings(), transaction.atomic("mariadb"):
            warnings.simplefilter("ignore")  # R13: the lock in front is inside a transaction that has read
            assert rows.count("mariadb", "anything") == 0  # the snapshot is taken
            winner = at_once(lambda: sender.post("atomic"), 1)[0]
            with connection.cursor() as cursor:
                cursor.execute("SELECT count(*) FROM django_distlock_idempotency")
                assert cursor.fetchone() == (0,), "there is no fault to guard against"
            second = view(_same_request(winner))
    finally:
        connection.close()
    assert second["Idempotency-Replayed"] == "true"
    assert first.status_code == second.status_code == 201
    assert site.effects == 2  # one for each winner


def _same_request(response: Any) -> Any:
    """The request that was answered, as it came: nothing on it but the URL it matched and its user."""
    request = response.wsgi_request
    del request.idempotency
    return request


@every_database
def test_a_savepoint_around_the_claim(site: Stage, sender: Sender, key: str) -> None:
    """The claim is made inside somebody's atomic block: a conflict must not break that transaction (PostgreSQL), nor
    may the view's rollback of its own savepoint free the key."""

    def roll_back_inside(request: Any) -> None:
        with transaction.atomic(site.alias):
            rows.write(site.alias, site.name)
            transaction.set_rollback(True, using=site.alias)

    site.during = roll_back_inside
    sender.post("atomic")
    from tests.idempotency.views import SHAPES

    answered = sender.post("atomic")
    with transaction.atomic(site.alias), transaction.atomic(site.alias):
        again = SHAPES["atomic"](_same_request(answered))
        rows.write(site.alias, site.name)
    assert again["Idempotency-Replayed"] == "true"
    assert site.effects == 2


@pytest.fixture
def received() -> Iterator[list[str]]:
    names = [name for name in vars(signals) if name.startswith("key_")]
    found: list[str] = []

    def receiver_of(name: str) -> Any:
        return lambda **facts: found.append(name)

    receivers = {name: receiver_of(name) for name in names}
    for name, receiver in receivers.items():
        getattr(signals, name).connect(receiver)
    yield found
    for name, receiver in receivers.items():
        getattr(signals, name).disconnect(receiver)


def test_signals(site: Stage, sender: Sender, key: str, received: list[str]) -> None:
    from django.http import HttpResponse

    from tests.idempotency.conftest import expire

    with Running(site, key, "plain"):
        sender.post("plain")
    sender.post("plain")
    sender.post("plain", {"other": 1})
    site.during = lambda request: None
    site.answer = lambda request: HttpResponse("x" * 300_000)
    sender.post("retry")
    sender.post("retry")
    with connections[site.alias].cursor() as cursor:
        cursor.execute("UPDATE django_distlock_idempotency SET state = 'claimed'")
    expire(site.alias)
    sender.post("retry")
    assert received == [
        *("key_claimed", "key_conflict", "key_replayed", "key_mismatch"),
        *("key_claimed", "key_tombstone", "key_expired", "key_claimed"),
    ]


def test_a_receiver_that_fails_changes_nothing(site: Stage, sender: Sender) -> None:
    def fail(**facts: Any) -> None:
        raise RuntimeError("boom")

    signals.key_claimed.connect(fail)
    try:
        assert sender.post().status_code == 201
    finally:
        signals.key_claimed.disconnect(fail)


@pytest.mark.parametrize("shape", ["async", "async_decorated", "plain"])
def test_duplicate_tasks_act_once(site: Stage, key: str, shape: str) -> None:
    client = AsyncClient()
    headers = {"Authorization": "Bearer a", "Idempotency-Key": key}

    async def race() -> list[Any]:
        posts = [
            client.post(f"/{shape}/", {"a": 1}, content_type="application/json", headers=headers) for _ in range(CROWD)
        ]
        return await asyncio.gather(*posts)

    answers = asyncio.run(race())
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert site.effects == 1


@pytest.mark.parametrize("shape", ["async", "async_decorated", "plain", "atomic"])
def test_a_client_that_goes_leaves_the_answer_behind(site: Stage, key: str, sender: Sender, shape: str) -> None:
    """Naive code loses it: CancelledError passes through the middleware after the view has acted."""
    acted = threading.Event()
    go_on = threading.Event()

    def pause(request: Any) -> Any:
        acted.set()
        if shape.startswith("async"):
            return asyncio.sleep(0.05)
        return go_on.wait(5)

    site.during = pause
    headers = {"Authorization": "Bearer a", "Idempotency-Key": key}

    async def leave() -> None:
        post = asyncio.ensure_future(
            AsyncClient().post(f"/{shape}/", {"name": "x"}, content_type="application/json", headers=headers)
        )
        while not acted.is_set():  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(0.005)
        post.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await post
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    asyncio.run(leave())
    eventually(lambda: states(site.alias) == ["completed"], "the answer was not kept")
    site.during = lambda request: None
    assert sender.post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1
