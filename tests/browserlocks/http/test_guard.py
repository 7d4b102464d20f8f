"""``@requires_lock``: 423 unless the request has the current lease, on the row and in the transaction of the view."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import OperationalError, connections, transaction
from django.test import AsyncClient, Client
from django.urls import clear_url_caches

from django_distlock.browser import requires_lock, store
from django_distlock.browser.guard import sent_leases
from django_distlock.models import BrowserLockRow, LockEvent
from tests.browserlocks.http.guarded import go_on, plain
from tests.browserlocks.http.people import Person, new
from tests.conftest import eventually
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ["plain", "of-class", "handler", "coroutine", "async-of-class"]
SYNC = ["plain", "of-class", "handler"]


@pytest.fixture(autouse=True)
def views(crew: dict[str, Person], settings: Any) -> Iterator[None]:
    settings.ROOT_URLCONF = "tests.browserlocks.http.guarded"
    clear_url_caches()
    LockEvent.rows.filter(name="guarded").delete()
    yield
    LockEvent.rows.filter(name="guarded").delete()


class Shopper:
    """A person with the lease of a cart."""

    def __init__(self, person: Person, name: str = "") -> None:
        assert person.user is not None
        self.person = person
        self.name = name or f"cart:{person.user.pk}"
        self.grant = person.grant(self.name)
        self.lease, self.fence = "", 0

    def take(self) -> Shopper:
        self.lease, self.fence = self.person.take(self.grant)
        return self

    @property
    def header(self) -> str:
        return f"{self.lease};{self.fence}"

    def post(self, path: str, header: str | None = None, **headers: str) -> Any:
        return self.person.client.post(f"/{path}/", headers={"Distlock-Lease": header or self.header, **headers})


@pytest.fixture
def shopper(ada: Person) -> Shopper:
    return Shopper(ada).take()


def written() -> int:
    return LockEvent.rows.filter(name="guarded").count()


def expire(shopper: Shopper) -> None:
    BrowserLockRow.rows.filter(name=shopper.name).update(expires_at=1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_current_lease_passes(shopper: Shopper, kind: str) -> None:
    response = shopper.post(kind)
    assert (response.status_code, written()) == (200, 1)
    assert response.json() == {"fences": {shopper.name: shopper.fence}, "blocks": 1}


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_current_lease_nothing_is_done(shopper: Shopper, bo: Person, kind: str) -> None:
    other = Shopper(bo, shopper.name)
    for header in (
        f"{shopper.lease};{shopper.fence - 1}",
        f"{shopper.lease};{shopper.fence + 1}",
        f"{new()};{shopper.fence}",
    ):
        response = shopper.post(kind, header)
        assert (response.status_code, response.json()["reason"]) == (423, "lost")
    assert other.post(kind, shopper.header).status_code == 423  # another user with a stolen lease
    assert Shopper(bo).take().post(kind, shopper.header).status_code == 423
    expire(shopper)
    assert shopper.post(kind).json()["reason"] == "lost"
    other.take()
    assert shopper.post(kind).json()["reason"] == "lost"
    assert written() == 0
    assert not connections["default"].in_atomic_block


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_without_a_lease_is_told_so(ada: Person, kind: str) -> None:
    for header in ("", "nonsense", "x;1", f"{new()}", f"{new()};-1", f"{new()};1e5", f"{new()};{'9' * 40}", ";;;,,,"):
        response = ada.client.post(f"/{kind}/", headers={"Distlock-Lease": header})
        assert (response.status_code, response.json()["reason"]) == (423, "missing"), header
    assert ada.client.post(f"/{kind}/").status_code == 423
    assert Client().post(f"/{kind}/").status_code == 423
    assert written() == 0


def test_leases_in_the_header() -> None:
    one, two = new(), new()
    assert sent_leases(f"{one};5") == [(one, 5)]
    assert sent_leases(f" {one} ; 5 , {two};6,bad;7") == [(one, 5), (two, 6)]
    assert len(sent_leases(",".join([f"{one};5"] * 1000))) == 10


@pytest.mark.parametrize("kind", ["plain", "of-class"])
def test_a_page_is_shown_without_a_lock(ada: Person, kind: str) -> None:
    assert ada.client.get(f"/{kind}/").content == b"the page"
    assert ada.client.head(f"/{kind}/").status_code == 200
    assert ada.client.delete(f"/{kind}/").status_code == 423


def test_methods_can_be_chosen(shopper: Shopper) -> None:
    client = shopper.person.client
    assert client.get("/reading/").status_code == 423
    assert client.get("/reading/", headers={"Distlock-Lease": shopper.header}).content == b"read"
    assert client.head("/reading/").status_code == 423  # Django runs what answers GET
    assert client.post("/reading/").content == b"read"


def test_two_locks_at_once(shopper: Shopper) -> None:
    till = Shopper(shopper.person, "till")
    assert shopper.post("two").status_code == 423
    till.take()
    response = shopper.post("two", f"{shopper.header}, {till.header}")
    assert response.json()["fences"] == {shopper.name: shopper.fence, "till": till.fence}
    assert shopper.post("two", f"{till.header},{shopper.header}").status_code == 200
    assert shopper.post("two", till.header).status_code == 423
    assert written() == 2


def test_a_name_from_the_address(shopper: Shopper) -> None:
    knight = Shopper(shopper.person, "piece:knight").take()
    assert knight.post("piece/knight").status_code == 200
    assert knight.post("piece/rook").status_code == 423
    assert knight.post(f"piece/{'x' * 600}").status_code == 400
    assert knight.post("piece/a%00b").status_code == 400


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_what_a_view_has_done_is_rolled_back_if_it_fails(shopper: Shopper, kind: str) -> None:
    with pytest.raises(ZeroDivisionError):
        shopper.post(kind, **{"X-Fail": "1"})
    assert written() == 0
    assert not connections["default"].in_atomic_block
    assert shopper.post(kind).status_code == 200


@pytest.mark.parametrize("kind", SYNC)
@pytest.mark.usefixtures("atomic_requests")
def test_with_atomic_requests_there_is_one_transaction(shopper: Shopper, kind: str) -> None:
    """It begins with the lock of the row: in one that has read before, the row might be that of an old snapshot."""
    response = shopper.post(kind)
    # Django wraps the view from outside where the decorator is on a handler of a class
    outer = 1 if kind == "handler" and connections["default"].settings_dict["ATOMIC_REQUESTS"] else 0
    assert response.json()["blocks"] == 1 + outer
    assert written() == 1


def test_a_script_gets_json_and_a_browser_a_page(ada: Person) -> None:
    page = ada.client.post("/plain/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page["Content-Type"]) == (423, "text/html; charset=utf-8")
    assert b"Nothing was changed" in page.content
    assert b'<html lang="en"' in page.content
    german = ada.client.post("/plain/", headers={"Accept": "text/html", "Accept-Language": "de"})
    assert german["Content-Language"] in ("de", "en")
    for accept in ("*/*", "application/json", ""):
        found = ada.client.post("/plain/", headers={"Accept": accept})
        assert found["Content-Type"] == "application/problem+json"
        assert found.json()["status"] == 423
    for response in (page, found):
        assert response["Cache-Control"] == "no-store"
        assert "Accept" in response["Vary"]


def test_a_refusal_does_not_say_who_has_the_lock(ada: Person, bo: Person) -> None:
    assert ada.user is not None
    Shopper(bo, f"cart:{ada.user.pk}").take()
    for accept in ("text/html", "application/json"):
        assert b"Bo" not in ada.client.post("/plain/", headers={"Accept": accept}).content


def test_what_cannot_be_decorated_is_refused() -> None:
    with pytest.raises(TypeError, match="names of locks"):
        requires_lock()
    with pytest.raises(TypeError, match="names of locks"):
        requires_lock(print)  # type: ignore[arg-type]
    for methods in ("POST", []):  # the letters of a text are no methods: every request would pass
        with pytest.raises(TypeError, match="methods"):
            requires_lock("a", methods=methods)
    with pytest.raises(TypeError, match="is a class"):
        requires_lock("a")(dict)
    with pytest.raises(ValueError, match="no argument 'pk'"):
        requires_lock("a:{pk}")(lambda request: None)
    with pytest.raises(TypeError, match="no request"):
        requires_lock("a")(lambda: None)()


def test_an_exception_that_rest_framework_has_answered_is_rolled_back(shopper: Shopper, atomic_requests: bool) -> None:
    """REST framework itself rolls back under ATOMIC_REQUESTS only."""
    assert shopper.post("rest").status_code == 400
    assert written() == 0


@pytest.mark.parametrize("path", ["stream", "async-stream"])
def test_content_that_is_made_after_the_commit_is_refused(shopper: Shopper, path: str) -> None:
    """It would be made under no lock: as for the other decorators."""
    with pytest.raises(TypeError, match="sent after the lock is released"):
        shopper.post(path)
    assert written() == 0


def test_a_decorator_above_keeps_its_lease(shopper: Shopper) -> None:
    till = Shopper(shopper.person, "till").take()
    response = shopper.post("nested", f"{shopper.header}, {till.header}")
    assert response.json()["fences"] == {shopper.name: shopper.fence, "till": till.fence}


# The row is locked until the commit.


def in_thread(work: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


@pytest.fixture
def view_may_end() -> threading.Event:
    """Until this is set, requests with X-Wait stay in their views."""
    go_on.clear()
    return go_on


@pytest.fixture(params=["postgres", "mariadb"])
def on_server(request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
    """The locks, and the rows of the views, in another database than the users."""
    settings.DISTLOCK_BROWSER = {"DATABASE": request.param}
    BrowserLockRow.rows.using(request.param).all().delete()
    yield request.param
    BrowserLockRow.rows.using(request.param).all().delete()


@pytest.mark.tier2
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_lease_that_runs_out_during_the_view_passes_to_no_one(
    on_server: str, ada: Person, bo: Person, kind: str, view_may_end: threading.Event
) -> None:
    """The view goes on to its commit; others are refused at once, and the next one has a higher fence."""
    first, second = Shopper(ada).take(), Shopper(bo, Shopper(ada).name)
    BrowserLockRow.rows.using(on_server).update(expires_at=BrowserLockRow.rows.using(on_server).get().since + 10**6)
    thread, found = in_thread(lambda: first.post(kind, **{"X-Wait": "1"}))
    try:
        eventually(lambda: not store.read(on_server, [first.name])[first.name].held, "it does not run out")
        assert thread.is_alive()
        began = time.monotonic()
        refused = second.person.acquire(second.grant, queue=False)
        assert (refused.status_code, thread.is_alive()) == (409, True)
        within(time.monotonic() - began, 1)
    finally:
        view_may_end.set()
        thread.join(10)
    assert found[0].status_code == 200
    assert second.take().fence > first.fence
    assert first.post(kind).status_code == 423


def test_requests_under_one_lease_come_one_after_the_other(
    on_server: str, ada: Person, view_may_end: threading.Event
) -> None:
    shopper = Shopper(ada).take()
    slow, found = in_thread(lambda: shopper.post("plain", **{"X-Wait": "1", "X-Kind": "slow"}))
    try:
        eventually(lambda: crowded(on_server, shopper), "the first request does not begin")
        threading.Timer(0.5, view_may_end.set).start()
        assert shopper.post("plain").status_code == 200
        assert not crowded(on_server, shopper)
    finally:
        view_may_end.set()
        slow.join(10)
    assert found[0].status_code == 200
    assert written() == 2


def crowded(alias: str, shopper: Shopper) -> bool:
    """Has a request locked the row?"""
    try:
        with transaction.atomic(using=alias):
            list(BrowserLockRow.rows.using(alias).filter(name=shopper.name).select_for_update(nowait=True))
    except OperationalError:
        return True
    return False


def test_a_database_that_gives_up_is_busy(shopper: Shopper, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def deadlock(*args: Any) -> None:
        tried.append(args)
        raise OperationalError(1213, "Deadlock found")

    monkeypatch.setattr(store, "lock_for_update", deadlock)
    response = shopper.post("plain")
    assert (response.status_code, response.json()["reason"], response["Retry-After"]) == (423, "busy", "1")
    assert len(tried) == 3
    assert not connections["default"].in_atomic_block

    def broken(*args: Any) -> None:
        raise OperationalError("the disk is full")

    monkeypatch.setattr(store, "lock_for_update", broken)
    with pytest.raises(OperationalError, match="disk"):
        shopper.post("plain")
    assert not connections["default"].in_atomic_block


# Async


def test_a_cancelled_request_is_rolled_back(shopper: Shopper) -> None:
    """The client has gone: the task of its request is cancelled while the view waits."""
    client = AsyncClient()
    client.cookies = shopper.person.client.cookies

    async def main() -> None:
        headers = {"Distlock-Lease": shopper.header, "X-Sleep": "30"}
        task = asyncio.ensure_future(client.post("/coroutine/", headers=headers))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = await client.post("/coroutine/", headers={"Distlock-Lease": shopper.header})
        assert again.status_code == 200

    asyncio.run(main())
    assert written() == 1


def test_a_sync_view_on_an_event_loop_is_refused_by_django(shopper: Shopper, rf: Any) -> None:
    request = rf.post("/plain/", headers={"Distlock-Lease": shopper.header})
    request.user = shopper.person.user

    async def main() -> None:
        with pytest.raises(SynchronousOnlyOperation):
            plain(request)

    asyncio.run(main())
