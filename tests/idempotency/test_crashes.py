"""Claims whose process died, claims of views that take long, and phases that are not repeated."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.http import HttpResponse
from django.test import AsyncClient, RequestFactory

from django_distlock.idempotency import Idempotency, idempotent
from django_distlock.idempotency.storage import storage_of
from django_distlock.idempotency.upkeep import renewal
from tests.conftest import eventually
from tests.idempotency.conftest import Sender, every_database, expire, states
from tests.idempotency.test_forms import Browser, hidden_fields
from tests.idempotency.test_races import Running
from tests.idempotency.views import BRIEF, redirect
from tests.transactions import rows

if TYPE_CHECKING:
    from tests.idempotency.views import Stage


class Died(BaseException):
    """The process is gone: nothing is tidied up."""


def die(site: Stage, sender: Sender | Browser, shape: str, fields: Any = None) -> None:
    """A request whose process dies in the view."""

    def killed(request: Any) -> None:
        raise Died

    site.during = killed
    with pytest.raises(Died):
        sender.send(fields, shape) if isinstance(sender, Browser) else sender.post(shape)
    assert not renewal._due, "a thread that was told to end leaves a claim that is renewed"
    site.during = lambda request: None


@every_database
def test_retry(site: Stage, sender: Sender) -> None:
    die(site, sender, "retry")
    assert states(site.alias) == ["claimed"]
    expire(site.alias)
    assert sender.post("retry").status_code == 201
    assert sender.post("retry")["Idempotency-Replayed"] == "true"
    assert len(site.runs) == 2


@every_database
def test_hold(site: Stage, sender: Sender) -> None:
    die(site, sender, "hold")
    expire(site.alias)
    for _ in range(2):
        assert sender.post("hold").json()["code"] == "outcome_unknown"
    assert states(site.alias) == ["unknown"]
    assert len(site.runs) == 1
    scopes = [scope for (scope,) in rows_of(site.alias)]
    assert storage_of(site.alias).free(scopes) == 1  # type: ignore[attr-defined]
    assert sender.post("hold").status_code == 201


def rows_of(alias: str) -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT scope FROM django_distlock_idempotency")
        return cursor.fetchall()


@pytest.mark.parametrize("shape", ["plain", "hold", "decorated"])
def test_what_may_have_been_done_is_not_done_again(site: Stage, sender: Sender, shape: str) -> None:
    """No option says that the view may run twice. Naive code runs it when the claim has expired."""
    die(site, sender, shape)
    expire(site.alias)
    for _ in range(2):
        assert sender.post(shape).json()["code"] == "outcome_unknown"
    assert site.effects == 1


def test_a_person_is_told_that_nobody_knows(site: Stage) -> None:
    site.answer = redirect
    browser = Browser()
    fields = browser.open()
    die(site, browser, "form", fields | {"name": "a <&>"})
    expire(site.alias)
    html = browser.send(fields | {"name": "a <&>"}).content.decode()
    assert "Not known whether it was saved" in html
    assert "Submit as new" in html
    assert site.effects == 1
    assert browser.send(hidden_fields(html) | {"name": "a <&>"}).status_code == 302
    assert site.effects == 2


@every_database
def test_a_callable_looks_for_itself(site: Stage, sender: Sender) -> None:
    die(site, sender, "callable")
    expire(site.alias)
    assert sender.post("callable").content == b"found"
    assert sender.post("callable").content == b"found"
    assert len(site.runs) == 1


def test_before_the_lease_is_over_it_counts_as_running(site: Stage, sender: Sender) -> None:
    die(site, sender, "plain")
    assert sender.post("plain").json()["code"] == "in_flight"


@every_database
def test_a_view_that_takes_longer_than_the_lease_keeps_its_claim(site: Stage, sender: Sender, key: str) -> None:
    """Naive code lets a second one in: the claim is renewed while the view runs."""
    with Running(site, key, "brief"):
        started = expiry(site.alias)
        # by then the first lease is over
        eventually(lambda: expiry(site.alias) > started + BRIEF * 1_000_000, "it is not renewed")
        assert sender.post("brief").json()["code"] == "in_flight"
    assert len(site.runs) == 1
    eventually(lambda: states(site.alias) == ["completed"], "it is not kept")


def expiry(alias: str) -> int:
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT expires_at FROM django_distlock_idempotency")
        (found,) = cursor.fetchall()
        return int(found[0])


@every_database
def test_finished_phases_are_not_repeated(site: Stage, sender: Sender) -> None:
    charged: list[str] = []

    def pay(request: Any) -> None:
        with request.idempotency.phase("charge") as charge:
            if not charge.done:
                charged.append(charge.key)
                charge.result = {"id": 7}
        assert charge.result == {"id": 7}
        with request.idempotency.phase("mail") as mail:
            assert not mail.done
            if len(site.runs) == 1:
                raise RuntimeError("the mail server is down")
        assert charge.key == request.idempotency.derive("charge") != mail.key

    site.during = pay
    assert sender.post().status_code == 500
    assert states(site.alias) == ["failed"]
    assert sender.post().status_code == 201
    assert len(charged) == 1
    assert len(site.runs) == 2


def test_phases_of_other_data_are_forgotten(site: Stage, sender: Sender) -> None:
    done: list[bool] = []

    def pay(request: Any) -> None:
        with request.idempotency.phase("charge") as charge:
            done.append(charge.done)
        if len(done) == 1:
            raise RuntimeError("boom")

    site.during = pay
    sender.post(data={"amount": 1})
    assert sender.post(data={"amount": 2}).status_code == 201
    assert done == [False, False]


def test_phases_in_a_task(site: Stage, key: str) -> None:
    async def pay(request: Any) -> None:
        async with request.idempotency.phase("charge") as charge:
            charge.result = [1]

    site.during = lambda request: pay(request)
    headers = {"Authorization": "Bearer a", "Idempotency-Key": key}
    asyncio.run(AsyncClient().post("/async/", {}, content_type="application/json", headers=headers))
    with connections[site.alias].cursor() as cursor:
        cursor.execute("SELECT phases FROM django_distlock_idempotency")
        assert json.loads(cursor.fetchone()[0]) == {"charge": [1]}


def test_derived_keys(site: Stage, sender: Sender) -> None:
    """The same for the same request, another one for each name, principal and key; and they do not tell the key."""
    derived: list[tuple[str, str]] = []

    def derive(request: Any) -> None:
        derived.append((request.idempotency.derive("payments"), request.idempotency.derive("mail")))
        raise RuntimeError("boom")

    site.during = derive
    for post in (sender, sender, Sender(sender.key, who="b"), Sender("another")):
        post.post()
    first, again, other_one, other_key = derived
    assert first == again
    assert len({*first, *other_one, *other_key}) == 6
    assert all(len(value) == 64 for value in first)


def test_without_a_key_a_view_needs_no_branches(site: Stage) -> None:
    def use(request: Any) -> None:
        state: Idempotency = request.idempotency
        assert not state
        assert state.key is None
        assert state.derive("a") != state.derive("a")
        with state.phase("charge") as charge:
            assert not charge.done
        state.keep()

    site.during = use
    assert Sender().post().status_code == 201


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ttl": 0}, ValueError),
        ({"ttl": "1"}, TypeError),
        ({"claim_ttl": -1}, ValueError),
        ({"wait": True}, TypeError),
        ({"atomic": 1}, TypeError),
        ({"required": "yes"}, TypeError),
        ({"on_crash": "again"}, ValueError),
        ({"on_store_error": "maybe"}, ValueError),
        ({"fingerprint_exclude": "name"}, TypeError),
        ({"key": "header"}, TypeError),
        ({"timeout": 1}, TypeError),
    ],
)
def test_wrong_options_fail_at_once(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        idempotent(**options)


def test_what_cannot_be_decorated() -> None:
    async def view(request: Any) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(TypeError, match="sync view"):
        idempotent(atomic=True)(view)
    with pytest.raises(TypeError, match="method_decorator"):
        idempotent(type("View", (), {}))
    with pytest.raises(TypeError, match="no request"):
        idempotent(lambda value: value)(1)


@pytest.mark.parametrize("atomic", [False, True])
def test_the_decorator_without_the_middleware(site: Stage, key: str, atomic: bool) -> None:
    view = idempotent(atomic=atomic, anonymous=True)(lambda request: HttpResponse(str(len(runs)) + str(runs.append(1))))
    runs: list[int] = []
    factory = RequestFactory(headers={"Idempotency-Key": key})
    assert [view(factory.post("/a/")).content for _ in range(2)] == [b"0None"] * 2


def test_the_decorator_without_the_middleware_in_a_task(site: Stage, key: str) -> None:
    runs: list[int] = []

    @idempotent(anonymous=True)
    async def view(request: Any) -> HttpResponse:
        runs.append(1)
        return HttpResponse("x")

    async def twice() -> list[Any]:
        factory = RequestFactory(headers={"Idempotency-Key": key})
        return [await view(factory.post("/a/")) for _ in range(2)]

    assert asyncio.run(twice())[1]["Idempotency-Replayed"] == "true"
    assert len(runs) == 1


def test_a_claim_inside_a_transaction_is_refused(site: Stage, key: str) -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.db import transaction

    view = idempotent(anonymous=True)(lambda request: HttpResponse())
    with transaction.atomic(), pytest.raises(ImproperlyConfigured, match="atomic=True"):
        view(RequestFactory(headers={"Idempotency-Key": key}).post("/a/"))


@every_database
@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_a_phase_is_rolled_back_with_what_it_has_written(site: Stage, sender: Sender, shape: str) -> None:
    """Naive code notes the phase on a connection of its own: its rows are gone, and it is taken for done. What is not
    rolled back, another service, knows the repetition by the key."""
    keys: list[str] = []

    def order(request: Any) -> None:
        with request.idempotency.phase("order") as step:
            keys.append(step.key)
            if not step.done:
                rows.write(site.alias, f"{site.name}-phase")
        if len(site.runs) == 1:
            raise RuntimeError("the mail server is down")

    site.during = order
    assert sender.post(shape).status_code == 500
    assert sender.post(shape).status_code == 201
    assert rows.count(site.alias, f"{site.name}-phase") == 1
    assert len(set(keys)) == 1
