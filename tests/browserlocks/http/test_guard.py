"""``@requires_lock``: 423 unless the request has the current lease, on the row and in the transaction of the view."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections
from django.test import AsyncClient
from django.urls import clear_url_caches

from django_distlock.browser import requires_lock, store
from django_distlock.models import BrowserLockRow, LockEvent
from tests.browserlocks.http import guarded
from tests.browserlocks.http.people import Person, new
from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ["plain", "of-class", "handler", "coroutine", "async-of-class"]


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


def reason(response: Any) -> str:
    assert response.status_code == 423
    found: str = response.json()["reason"]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_current_lease_passes(shopper: Shopper, bo: Person, kind: str) -> None:
    response = shopper.post(kind)
    assert (response.status_code, written()) == (200, 1)
    assert response.json() == {"fences": {shopper.name: shopper.fence}, "blocks": 1}
    client = shopper.person.client
    for header in ("", "nonsense", f"{new()}", f"{new()};-1", f"{new()};1e5", f"{new()};{'9' * 40}", ";;;,,,"):
        assert reason(client.post(f"/{kind}/", headers={"Distlock-Lease": header})) == "missing", header
    assert reason(client.post(f"/{kind}/")) == "missing"
    other = Shopper(bo, shopper.name)
    for fence in (shopper.fence - 1, shopper.fence + 1):
        assert reason(shopper.post(kind, f"{shopper.lease};{fence}")) == "lost"
    assert reason(shopper.post(kind, f"bad, {new()};{shopper.fence}")) == "lost"
    assert other.post(kind, shopper.header).status_code == 423  # another user with a stolen lease
    BrowserLockRow.rows.filter(name=shopper.name).update(expires_at=1)
    assert reason(shopper.post(kind)) == "lost"
    other.take()
    assert reason(shopper.post(kind)) == "lost"
    assert written() == 1
    assert not connections["default"].in_atomic_block


def test_a_header_has_ten_leases_at_most(shopper: Shopper) -> None:
    too_many = ",".join([f"{new()};5"] * 10)
    assert shopper.post("plain", f" {shopper.lease} ; {shopper.fence} , {too_many}").status_code == 200
    assert shopper.post("plain", f"{too_many},{shopper.header}").status_code == 423


def test_methods(shopper: Shopper) -> None:
    """A page is shown without a lock, unless the view says otherwise. Django runs for HEAD what answers GET."""
    client = shopper.person.client
    for kind in ("plain", "of-class"):
        assert client.get(f"/{kind}/").content == b"the page"
        assert client.head(f"/{kind}/").status_code == 200
        assert client.delete(f"/{kind}/").status_code == 423
    assert [getattr(client, method)("/reading/").status_code for method in ("get", "head")] == [423, 423]
    assert client.get("/reading/", headers={"Distlock-Lease": shopper.header}).content == b"read"
    assert client.post("/reading/").content == b"read"


@pytest.mark.parametrize("path", ["two", "nested"])
def test_two_locks_at_once(shopper: Shopper, path: str) -> None:
    till = Shopper(shopper.person, "till")
    assert shopper.post(path).status_code == 423
    till.take()
    for header in (f"{shopper.header}, {till.header}", f"{till.header},{shopper.header}"):
        response = shopper.post(path, header)
        assert response.json()["fences"] == {shopper.name: shopper.fence, "till": till.fence}
    assert shopper.post(path, till.header).status_code == 423


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


@pytest.mark.parametrize("atomic", [False, True])
def test_with_atomic_requests_there_is_one_transaction(
    shopper: Shopper, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    """It begins with the lock of the row: in one that has read before, the row might be that of an old snapshot."""
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", atomic)
    for kind in ("plain", "of-class", "handler"):
        # Django wraps the view from outside where the decorator is on a handler of a class
        assert shopper.post(kind).json()["blocks"] == 1 + (atomic and kind == "handler")
    assert written() == 3
    assert shopper.post("rest").status_code == 400  # REST framework rolls back under ATOMIC_REQUESTS only
    assert written() == 3


def test_a_script_gets_json_and_a_browser_a_page(ada: Person, bo: Person) -> None:
    """Neither says who has the lock."""
    assert ada.user is not None
    Shopper(bo, f"cart:{ada.user.pk}").take()
    page = ada.client.post("/plain/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (page.status_code, page["Content-Type"]) == (423, "text/html; charset=utf-8")
    assert b"Nothing was changed" in page.content
    assert b'<html lang="en"' in page.content
    for accept in ("*/*", "application/json", ""):
        found = ada.client.post("/plain/", headers={"Accept": accept})
        assert found["Content-Type"] == "application/problem+json"
        assert found.json()["status"] == 423
    for response in (page, found):
        assert response["Cache-Control"] == "no-store"
        assert "Accept" in response["Vary"]
        assert b"Bo" not in response.content


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


@pytest.mark.parametrize("path", ["stream", "async-stream"])
def test_content_that_is_made_after_the_commit_is_refused(shopper: Shopper, path: str) -> None:
    """It would be made under no lock: as for the other decorators."""
    with pytest.raises(TypeError, match="sent after the lock is released"):
        shopper.post(path)
    assert written() == 0


@pytest.mark.tier2
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_lease_that_runs_out_during_the_view_passes_to_no_one(
    settings: Any, ada: Person, bo: Person, kind: str
) -> None:
    """The view goes on to its commit; others are refused at once, and the next one has a higher fence."""
    settings.DISTLOCK_BROWSER = {"DATABASE": "postgres"}  # another database than that of the users
    rows = BrowserLockRow.rows.using("postgres")
    rows.all().delete()
    first, second = Shopper(ada).take(), Shopper(bo, Shopper(ada).name)
    rows.update(expires_at=rows.get().since + 2 * 10**6)
    guarded.go_on.clear()
    found: list[Any] = []

    def view() -> None:
        found.append(first.post(kind, **{"X-Wait": "1"}))
        connections.close_all()

    thread = threading.Thread(target=view)
    thread.start()
    try:
        eventually(lambda: not store.read("postgres", [first.name])[first.name].held, "it does not run out")
        assert second.person.acquire(second.grant, queue=False).status_code == 409
        assert thread.is_alive()
    finally:
        guarded.go_on.set()
        thread.join()
    assert found[0].status_code == 200
    assert second.take().fence > first.fence
    assert first.post(kind).status_code == 423
    rows.all().delete()


def test_a_database_that_gives_up_is_busy(shopper: Shopper, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def deadlock(*args: Any) -> None:
        tried.append(args)
        raise OperationalError(1213, "Deadlock found")

    monkeypatch.setattr(store, "lock_for_update", deadlock)
    response = shopper.post("plain")
    assert (reason(response), response["Retry-After"]) == ("busy", "1")
    assert len(tried) == 3
    assert not connections["default"].in_atomic_block

    def broken(*args: Any) -> None:
        raise OperationalError("the disk is full")

    monkeypatch.setattr(store, "lock_for_update", broken)
    with pytest.raises(OperationalError, match="disk"):
        shopper.post("plain")
    assert not connections["default"].in_atomic_block


def test_a_cancelled_request_is_rolled_back(shopper: Shopper) -> None:
    """The client has gone: the task of its request is cancelled while the view waits."""
    client = AsyncClient()
    client.cookies = shopper.person.client.cookies
    headers = {"Distlock-Lease": shopper.header}

    async def main() -> None:
        guarded.inside[:] = [asyncio.Event()]
        task = asyncio.ensure_future(client.post("/coroutine/", headers={**headers, "X-Stay": "1"}))
        await guarded.inside[0].wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.post("/coroutine/", headers=headers)).status_code == 200

    asyncio.run(main())
    assert written() == 1
