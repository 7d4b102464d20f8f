"""``@requires_lock``: 423 unless the request has the current lease, on the row and in the transaction of the view."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction
from django.test import AsyncClient

from django_distlock.browser import guard, requires_lock
from django_distlock.leases import rows
from django_distlock.models import LockEvent, WebLease
from tests.browserlocks import site
from tests.browserlocks.people import Person, Tab, new
from tests.conftest import PATIENCE
from tests.support.places import READ_COMMITTED, Place, at_the_side

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def cart(ada: Person) -> Iterator[Tab]:
    """Ada's tab with the lease of her cart."""
    LockEvent.rows.filter(name="guarded").delete()
    yield ada.tab(f"cart:{ada.user.pk}").take()
    LockEvent.rows.filter(name="guarded").delete()


def written() -> int:
    return LockEvent.rows.filter(name="guarded").count()


def reason(response: Any) -> str:
    assert response.status_code == 423
    assert not connections["default"].in_atomic_block
    return str(response.json()["reason"])


@pytest.mark.parametrize("kind", ["plain", "of-class", "handler", "coroutine", "async-of-class"])
def test_only_the_current_lease_passes(cart: Tab, bo: Person, kind: str) -> None:
    assert cart.post(kind).json() == {"fences": {cart.name: cart.fence}, "blocks": 1}
    for header in ("", "nonsense", f"{new()}", f"{new()};-1", f"{new()};1e5", f"{new()};{'9' * 40}", ";;;,,,"):
        assert reason(cart.post(kind, header)) == "missing", header
    assert reason(cart.person.client.post(f"/{kind}/")) == "missing"
    too_many = ",".join([f"{new()};5"] * 10)  # ten are looked at
    assert cart.post(kind, f" {cart.lease} ; {cart.fence} , {too_many}").status_code == 200
    assert reason(cart.post(kind, f"{too_many},{cart.header}")) == "lost"
    other = bo.tab(cart.name)
    for fence in (cart.fence - 1, cart.fence + 1):
        assert reason(cart.post(kind, f"{cart.lease};{fence}")) == "lost"
    assert reason(cart.post(kind, f"bad, {new()};{cart.fence}")) == "lost"
    assert other.post(kind, cart.header).status_code == 423  # another user with a stolen lease
    WebLease.rows.filter(name=cart.name).update(expires_at=1)
    assert reason(cart.post(kind)) == "lost"
    other.take()
    assert reason(cart.post(kind)) == "lost"
    assert written() == 2


def test_methods(cart: Tab) -> None:
    """A page is shown without a lock, unless the view says otherwise. Django runs for HEAD what answers GET."""
    client = cart.person.client
    for kind in ("plain", "of-class"):
        page = client.get(f"/{kind}/")
        assert (page.content, page.wsgi_request.distlock_leases) == (b"the page", {})
        assert client.head(f"/{kind}/").status_code == 200
        assert client.delete(f"/{kind}/").status_code == 423
    assert [getattr(client, method)("/reading/").status_code for method in ("get", "head")] == [423, 423]
    assert client.get("/reading/", headers={"Distlock-Lease": cart.header}).content == b"Done."
    assert client.post("/reading/").content == b"Done."


@pytest.mark.parametrize("kind", ["plain", "coroutine", "handler"])
def test_the_row_is_locked_until_the_view_has_committed(
    ada: Person, cart: Tab, settings: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """So that a lease that runs out during the view passes to nobody before its commit."""
    settings.DISTLOCK_BROWSER = {"DATABASE": "postgres"}
    found: list[Any] = []

    def look() -> list[str]:
        rows = WebLease.rows.using("postgres").filter(model="").select_for_update(skip_locked=True)
        with transaction.atomic(using="postgres"):
            return [row.name for row in rows]

    beside = partial(at_the_side, Place("postgres", READ_COMMITTED), look)
    monkeypatch.setattr(site, "write", lambda: found.append(beside()))
    try:
        assert ada.tab(cart.name).take().post(kind).json()["blocks"] == 1
        assert (found, beside()) == ([[]], [cart.name])
    finally:
        WebLease.rows.using("postgres").all().delete()


@pytest.mark.parametrize("alias", ["postgres", "mariadb"])
def test_requests_of_one_lease_wait_for_each_other_and_not_for_ever(
    ada: Person, cart: Tab, settings: Any, monkeypatch: pytest.MonkeyPatch, alias: str
) -> None:
    """Each keeps a worker meanwhile: naive code waits in the database for as long as the view before it hangs."""
    settings.DISTLOCK_BROWSER = {"DATABASE": alias}
    tab = ada.tab(cart.name).take()
    found: list[Any] = []
    real = rows.lock_current

    def post() -> None:
        found.append(tab.post("plain"))
        connections.close_all()

    asked, late = threading.Event(), threading.Thread(target=post)

    def ask(*args: Any) -> Any:
        asked.set()
        return real(*args)

    def beside() -> None:
        monkeypatch.undo()
        monkeypatch.setattr(guard, "PATIENCE", 0.1)
        at_the_side(Place(alias, READ_COMMITTED), lambda: found.append(reason(tab.post("plain"))))
        monkeypatch.setattr(guard, "PATIENCE", PATIENCE)
        monkeypatch.setattr(rows, "lock_current", ask)
        late.start()
        assert asked.wait(PATIENCE)

    monkeypatch.setattr(site, "write", beside)
    try:
        assert tab.post("plain").status_code == 200
        late.join(PATIENCE)
        assert (found[0], found[1].status_code) == ("busy", 200)
    finally:
        WebLease.rows.using(alias).all().delete()


@pytest.mark.parametrize("path", ["two", "nested"])
def test_two_locks_at_once(cart: Tab, path: str) -> None:
    till = cart.person.tab("till")
    assert cart.post(path).status_code == 423
    till.take()
    for header in (f"{cart.header}, {till.header}", f"{till.header},{cart.header}"):
        assert cart.post(path, header).json()["fences"] == {cart.name: cart.fence, "till": till.fence}
    assert cart.post(path, till.header).status_code == 423


def test_a_name_from_the_address(ada: Person, cart: Tab) -> None:
    knight = ada.tab("piece:knight").take()
    addresses = ("knight", "rook", "x" * 600, "a%00b")
    assert [knight.post(f"piece/{name}").status_code for name in addresses] == [200, 423, 400, 400]


@pytest.mark.parametrize("kind", ["plain", "coroutine", "stream", "async-stream"])
def test_what_a_view_has_done_is_rolled_back_if_it_fails(cart: Tab, kind: str) -> None:
    """Also by an answer that is a stream: its content would be made after the commit."""
    with pytest.raises(TypeError if "stream" in kind else ZeroDivisionError, match=r"sent after the lock|^$"):
        cart.post(kind, **{"X-Fail": "1"})
    assert written() == 0
    assert not connections["default"].in_atomic_block
    assert cart.post("plain").status_code == 200


@pytest.mark.parametrize("atomic", [False, True])
def test_with_atomic_requests_there_is_one_transaction(cart: Tab, monkeypatch: Any, atomic: bool) -> None:
    """It begins with the lock of the row: in one that has read before, the row might be that of an old snapshot."""
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", atomic)
    for kind in ("plain", "of-class", "handler"):
        # Django wraps the view from outside where the decorator is on a handler of a class
        assert cart.post(kind).json()["blocks"] == 1 + (atomic and kind == "handler")
    assert cart.post("rest").status_code == 400  # REST framework rolls back under ATOMIC_REQUESTS only
    assert written() == 3


def test_a_script_gets_json_and_a_browser_a_page(cart: Tab, bo: Person) -> None:
    """Neither says who has the lock."""
    cart.release()
    bo.tab(cart.name).take()
    for accept in ("text/html,application/xhtml+xml,*/*;q=0.8", "*/*", "application/json", ""):
        found = cart.person.client.post("/plain/", headers={"Accept": accept})
        assert (found.status_code, found["Cache-Control"], "Accept" in found["Vary"]) == (423, "no-store", True)
        if "html" in accept:
            assert found["Content-Type"] == "text/html; charset=utf-8"
            assert "Nothing was changed" in found.content.decode()
            assert '<html lang="en"' in found.content.decode()
        else:
            assert (found["Content-Type"], found.json()["status"]) == ("application/problem+json", 423)
        assert "Bo" not in found.content.decode()


@pytest.mark.parametrize(
    ("names", "options", "view", "error", "message"),
    [
        ((), {}, None, TypeError, "names of locks"),
        ((print,), {}, None, TypeError, "names of locks"),
        (("a",), {"methods": "POST"}, None, TypeError, "methods"),  # its letters: every request would pass
        (("a",), {"methods": []}, None, TypeError, "methods"),
        (("a",), {}, dict, TypeError, "is a class"),
        (("a:{pk}",), {}, lambda request: None, ValueError, "no argument 'pk'"),
        (("a",), {}, lambda: None, TypeError, "no request"),
    ],
)
def test_what_cannot_be_decorated_is_refused(names: Any, options: Any, view: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        requires_lock(*names, **options)(view)()


def test_a_database_that_gives_up_is_busy(cart: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OperationalError(1213, "Deadlock found")

    def fail(*args: Any) -> None:
        raise error

    monkeypatch.setattr(rows, "lock_current", fail)
    monkeypatch.setattr(guard, "PATIENCE", 0.1)
    response = cart.post("plain")
    assert (reason(response), response["Retry-After"]) == ("busy", "1")
    error = OperationalError("the disk is full")
    with pytest.raises(OperationalError, match="disk"):
        cart.post("plain")
    assert not connections["default"].in_atomic_block


def test_a_cancelled_request_is_rolled_back(cart: Tab) -> None:
    """The client has gone: the task of its request is cancelled while the view waits. JSON: a form might have an
    idempotency key, and is worked on to its end."""
    client, headers, kind = AsyncClient(), {"Distlock-Lease": cart.header}, "application/json"
    client.cookies = cart.person.client.cookies

    async def main() -> None:
        site.inside[:] = [asyncio.Event()]
        task = asyncio.ensure_future(client.post("/coroutine/", {}, kind, headers={**headers, "X-Stay": "1"}))
        await site.inside[0].wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.post("/coroutine/", {}, kind, headers=headers)).status_code == 200

    asyncio.run(main())
    assert written() == 1
