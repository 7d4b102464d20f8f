"""Corner cases in which a request would be lost, run twice, or get a wrong answer."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.http import HttpResponse
from django.test import AsyncClient, RequestFactory
from django.views.decorators.gzip import gzip_page

from django_distlock.idempotency import decisions, idempotent
from django_distlock.idempotency.storage import storage_of
from django_distlock.idempotency.storage.database import DatabaseStorage
from django_distlock.idempotency.upkeep import renewal
from tests.idempotency.conftest import MIDDLEWARE, Sender, expire, states
from tests.idempotency.test_crashes import die
from tests.idempotency.test_forms import Browser
from tests.idempotency.test_storages import claim_of
from tests.idempotency.views import redirect

if TYPE_CHECKING:
    from tests.idempotency.views import Stage


def test_an_exception_without_the_middleware_frees_the_key(site: Stage, key: str) -> None:
    """Naive code leaves the claim to the renewal, which keeps it for as long as the process lives."""

    @idempotent(anonymous=True)
    def view(request: Any) -> HttpResponse:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        view(RequestFactory(headers={"Idempotency-Key": key}).post("/a/"))
    assert not renewal._due
    assert states(site.alias) == []


def test_an_exception_without_the_middleware_in_a_task(site: Stage, key: str) -> None:
    @idempotent(anonymous=True)
    async def view(request: Any) -> HttpResponse:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        asyncio.run(view(RequestFactory(headers={"Idempotency-Key": key}).post("/a/")))
    assert not renewal._due
    assert states(site.alias) == []


def test_a_task_that_is_cancelled_without_the_middleware_goes_on(site: Stage, key: str) -> None:
    begun: list[int] = []

    @idempotent(anonymous=True)
    async def view(request: Any) -> HttpResponse:
        begun.append(1)
        await asyncio.sleep(0.02)
        return HttpResponse("done")

    request = RequestFactory(headers={"Idempotency-Key": key}).post("/a/")

    async def leave() -> None:
        task = asyncio.ensure_future(view(request))
        while not begun:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    asyncio.run(leave())
    assert not renewal._due
    assert states(site.alias) == ["completed"]


def test_a_client_that_goes_during_the_claim(site: Stage, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Naive code leaves a claim whose view does not run."""
    claiming, go_on = threading.Event(), threading.Event()
    plain = DatabaseStorage.claim

    def slow(self: DatabaseStorage, claim: Any) -> Any:
        found = plain(self, claim)
        claiming.set()
        assert go_on.wait(10)
        return found

    monkeypatch.setattr(DatabaseStorage, "claim", slow)
    headers = {"Authorization": "Bearer a", "Idempotency-Key": key}

    async def leave() -> None:
        post = asyncio.ensure_future(AsyncClient().post("/async/", {}, headers=headers))
        while not claiming.is_set():  # noqa: ASYNC110 - set by a thread
            await asyncio.sleep(0.005)
        post.cancel()
        asyncio.get_running_loop().call_later(0.02, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await post
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    asyncio.run(leave())
    assert states(site.alias) == ["completed"]
    assert len(site.runs) == 1


def test_a_compressed_answer_can_be_read(site: Stage, key: str) -> None:
    """Naive code repeats the compressed body without the header that says so."""
    body = b"a long answer " * 100
    view = idempotent(anonymous=True)(gzip_page(lambda request: HttpResponse(body)))
    factory = RequestFactory(headers={"Idempotency-Key": key, "Accept-Encoding": "gzip"})
    first, second = view(factory.post("/a/")), view(factory.post("/a/"))
    assert first["Content-Encoding"] == second["Content-Encoding"] == "gzip"
    assert second.content == first.content


@pytest.mark.parametrize("alias", ["default", "postgres"], indirect=True)
@pytest.mark.parametrize("in_transaction", [False, True])
def test_exactly_once_without_its_store_if_that_is_wanted(
    site: Stage, sender: Sender, monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    """Naive code runs the view inside the transaction that the failed claim has broken."""
    monkeypatch.setitem(connections.settings[site.alias], "ATOMIC_REQUESTS", in_transaction)
    with connections[site.alias].cursor() as cursor:
        cursor.execute("ALTER TABLE django_distlock_idempotency RENAME TO distlock_away")
    try:
        assert sender.post("atomic_open").status_code == 201
    finally:
        with connections[site.alias].cursor() as cursor:
            cursor.execute("ALTER TABLE distlock_away RENAME TO django_distlock_idempotency")
    assert site.effects == 1


def test_phases_of_other_data_are_forgotten_by_a_crash_too(site: Stage, sender: Sender) -> None:
    """Naive code takes the charge for A as that for B, after B has died before its own."""
    done: list[bool] = []

    def pay(request: Any) -> None:
        with request.idempotency.phase("charge") as charge:
            done.append(charge.done)
        if len(done) == 1:
            raise RuntimeError("boom")

    site.during = pay
    sender.post("retry", {"amount": 1})

    class Other(Sender):
        def post(self, shape: str = "plain", data: Any = None, **more: Any) -> Any:
            return super().post(shape, {"amount": 2}, **more)

    die(site, Other(sender.key), "retry")
    expire(site.alias)
    site.during = pay
    assert sender.post("retry", {"amount": 2}).status_code == 201
    assert done == [False, False]


@pytest.mark.parametrize("alias", ["postgres", "mariadb"], indirect=True)
def test_a_method_with_a_long_name(site: Stage, sender: Sender, key: str) -> None:
    """The column is short, and PostgreSQL refuses what does not fit."""
    headers = {"Idempotency-Key": key}
    for _ in range(2):
        response = sender.client.generic("BASELINE-CONTROL", "/plain/", headers=headers)
        assert response.status_code == 201
    assert site.effects == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ('{"amount": 100000000000000000.01}', '{"amount": 100000000000000000.02}'),
        ('{"amount": 1e400}', '{"amount": 2e400}'),
        ('{"amount": 1, "amount": 2}', '{"amount": 2}'),
        ('{"amount": 1.5}', '{"amount": "1.5"}'),
        ('{"amount": 1.5}', '{"amount": [NaN, "1.5"]}'),
    ],
)
def test_what_one_parser_takes_for_the_same_another_does_not(first: str, second: str) -> None:
    """A view may read its numbers as Decimal, and the first of two members of one name."""
    assert decisions.json_body(first.encode()) != decisions.json_body(second.encode())


@pytest.mark.parametrize("body", ["a=" + "x" * 200, "&".join(f"f{n}=1" for n in range(20))])
def test_a_form_that_a_view_reads_itself(site: Stage, sender: Sender, settings: Any, body: str) -> None:
    """A view without CSRF that reads the stream is not to be broken by who looks for a key."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 10
    read: list[bytes] = []
    site.during = lambda request: read.append(request.read())
    kind = "application/x-www-form-urlencoded"
    response = sender.client.post("/exempt_of_csrf/", body, content_type=kind)
    assert response.status_code == 201
    assert read == [body.encode()]


def test_a_callable_that_decides_nothing_does_not_run_the_view_again(site: Stage, sender: Sender) -> None:
    die(site, sender, "undecided")
    expire(site.alias)
    assert sender.post("undecided").status_code == 500
    assert len(site.runs) == 1


@pytest.mark.parametrize("option", ["on_crash", "key"])
def test_callables_are_not_awaited(option: str) -> None:
    async def ask(*args: Any) -> str:
        return "retry"

    with pytest.raises(TypeError, match=option):
        idempotent(**{option: ask})


class Failing:
    """A middleware that fails when the view has answered."""

    broken = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        response = self.get_response(request)
        if self.broken:
            raise RuntimeError("boom")
        return response


FAILING = f"{__name__}.Failing"


@pytest.mark.parametrize("shape", ["plain", "decorated", "atomic"])
@pytest.mark.parametrize("place", ["above", "below"])
def test_an_exception_in_another_middleware(
    site: Stage, sender: Sender, settings: Any, monkeypatch: pytest.MonkeyPatch, shape: str, place: str
) -> None:
    """Naive code takes it for one of the view, and the retry acts again."""
    settings.MIDDLEWARE = [*MIDDLEWARE, FAILING] if place == "below" else [FAILING, *MIDDLEWARE]
    assert sender.post(shape).status_code == 500
    monkeypatch.setattr(Failing, "broken", False)
    sender.client = Sender(sender.key).client
    again = sender.post(shape)
    assert again.status_code in (201, 409)
    assert site.effects == 1


def test_a_form_whose_method_is_overridden(site: Stage, settings: Any) -> None:
    settings.MIDDLEWARE = [*MIDDLEWARE[:-1], f"{__name__}.override", MIDDLEWARE[-1]]
    site.answer = redirect
    browser = Browser()
    fields = browser.open(form=1) | {"_method": "PUT"}
    token = {"X-CSRFToken": fields["csrfmiddlewaretoken"]}
    for _ in range(2):
        assert browser.send(fields, "elsewhere", headers=token).status_code == 302
    assert site.effects == 1


def override(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        request.method = request.POST.get("_method", request.method)
        return get_response(request)

    return middleware


def test_purging_leaves_what_still_runs(site: Stage) -> None:
    """A lifetime that is shorter than a view."""
    storage = storage_of(site.alias)
    running, over = claim_of("1", ttl=0.001, claim_ttl=1000), claim_of("2", ttl=0.001, claim_ttl=0.001)
    storage.claim(running)
    storage.claim(over)
    threading.Event().wait(0.005)
    assert storage.purge() == 1  # type: ignore[attr-defined]
    assert storage.read(running.scope) is not None
