"""Claims inside transactions that have begun before them, and the signals."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import HttpResponse
from django.test import RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_distlock.idempotency import Idempotency, IdempotencyMiddleware, idempotent, signals
from tests.conftest import eventually
from tests.idempotency import views
from tests.idempotency.views import SHAPES, aact, act
from tests.idempotency.world import (
    Running,
    Sender,
    Stage,
    at_once,
    change,
    every_database,
    expire,
    on_servers,
    sql,
    stage,
    states,
)
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Iterator


def same_request(response: Any) -> Any:
    """The request that was answered, as it came: nothing on it but the URL it matched and its user."""
    request = response.wsgi_request
    del request.idempotency
    return request


@every_database
def test_a_savepoint_around_the_claim(site: Stage, sender: Sender) -> None:
    """A conflict must not break the caller's transaction, nor may the view's own rollback free the key."""

    def roll_back_inside(request: Any) -> None:
        with transaction.atomic(site.alias):
            rows.write(site.alias, site.name)
            transaction.set_rollback(True, using=site.alias)

    site.during = roll_back_inside
    sender.post("atomic")
    answered = sender.post("atomic")
    with transaction.atomic(site.alias), transaction.atomic(site.alias):
        again = SHAPES["atomic"](same_request(answered))
        rows.write(site.alias, site.name)
    assert again["Idempotency-Replayed"] == "true"
    assert site.effects == 2


@on_servers
@pytest.mark.parametrize(("shape", "status"), [("atomic", 201), ("atomic", 422), ("atomic_impatient", 201)])
def test_two_copies_that_are_answered_at_the_same_time(site: Stage, sender: Sender, shape: str, status: int) -> None:
    """The lock in front belongs to the transaction of the one; the other is not told that the first request runs."""
    answered = sender.post(shape)
    data = {"other": 1} if status == 422 else None
    with transaction.atomic(site.alias):
        first = SHAPES[shape](same_request(answered))
        (second,) = at_once(lambda: sender.post(shape, data), 1)
    assert first["Idempotency-Replayed"] == "true"
    assert (second.status_code, second.has_header("Idempotency-Replayed")) == (status, status == 201)
    assert site.effects == 1


@on_servers
def test_a_copy_that_comes_while_an_old_key_is_used_anew(site: Stage, sender: Sender, key: str) -> None:
    """It has expired, and another request has the key: the old answer is not the answer now."""
    sender.post("atomic")
    expire(site.alias)
    with Running(site, lambda: Sender(key).post("atomic")):
        assert sender.post("atomic").json()["code"] == "in_flight"
    assert site.effects == 2


def test_a_file_that_another_writer_keeps_busy(site: Stage, sender: Sender) -> None:
    """On SQLite. Naive code says that the request is still being worked on, or runs the view unprotected."""
    sql("default", "PRAGMA busy_timeout = 20")
    with closing(connections["default"].copy()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        answers = [sender.post(shape) for shape in ("atomic", "atomic_open", "plain")]
        cursor.execute("ROLLBACK")
    assert [answer.json().get("code") for answer in answers] == ["store_unavailable"] * 3
    assert site.effects == 0
    assert sender.post("atomic").status_code == 201


@contextmanager
def inside(autocommit: bool, commits: bool) -> Iterator[None]:
    """A transaction of the caller, also one that begins by itself because autocommit is off."""
    if autocommit:
        with transaction.atomic():
            yield
            transaction.set_rollback(not commits)
        return
    transaction.set_autocommit(False)
    try:
        yield
        (transaction.commit if commits else transaction.rollback)()
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.parametrize("autocommit", [True, False])
def test_inside_a_transaction_it_is_exactly_once(site: Stage, key: str, autocommit: bool) -> None:
    """Nobody else would see the claim, so claim, view and answer end together; what cannot be part of it is refused."""
    view = idempotent(act)

    def request() -> Any:
        return RequestFactory(headers={"Idempotency-Key": key, "Authorization": "a"}).post("/")

    with inside(autocommit, commits=False):
        view(request())
    assert (states(site.alias), site.effects) == ([], 0)
    with inside(autocommit, commits=True):
        view(request())
    with inside(autocommit, commits=True):
        assert view(request())["Idempotency-Replayed"] == "true"
    assert site.effects == 1
    plain = request()
    plain.idempotency = Idempotency()
    with inside(autocommit, commits=False), pytest.raises(ImproperlyConfigured, match="in a transaction"):
        IdempotencyMiddleware(act).process_view(plain, act, (), {})
    with inside(autocommit, commits=False), pytest.raises(ImproperlyConfigured, match="in a transaction"):
        async_to_sync(idempotent(aact))(request())


@pytest.mark.usefixtures("atomic_requests")
def test_under_atomic_requests_each_call_of_the_view_has_its_transaction(site: Stage, sender: Sender) -> None:
    """The decorator opens it in Django's place, for requests without a key too; ``non_atomic_requests`` counts."""
    inside: list[bool] = []
    site.during = lambda request: inside.append(connections[site.alias].in_atomic_block)
    for key in (sender.key, None):
        assert Sender(key).post("decorated").status_code == 201
    assert sender.client.get("/decorated/").status_code == 201
    assert sender.post("non_atomic").status_code == 201
    assert inside == [True, True, True, False]


def connected(stack: ExitStack, signal: Any, receiver: Any) -> None:
    signal.connect(receiver, weak=False)
    stack.callback(signal.disconnect, receiver)


def test_signals(site: Stage, sender: Sender, key: str) -> None:
    """A receiver that fails changes nothing."""
    received: list[str] = []
    with ExitStack() as stack:
        for name, signal in vars(signals).items():
            if name.startswith("key_"):
                connected(stack, signal, lambda **facts: 1 / 0)
                connected(stack, signal, lambda name=name, **facts: received.append(name))
        with Running(site, lambda: Sender(key).post()):
            sender.post()
        sender.post()
        sender.post(data={"other": 1})
        site.answer = lambda request: HttpResponse("x" * 300_000)
        sender.post("retry")
        sender.post("retry")
        sql(site.alias, "UPDATE {keys} SET state = 'claimed'")
        expire(site.alias)
        sender.post("retry")
    assert received == [
        *("key_claimed", "key_conflict", "key_replayed", "key_mismatch"),
        *("key_claimed", "key_tombstone", "key_expired", "key_claimed"),
    ]


class FailingLate(View):
    """What fails at the first request is around the handler, in the transaction of the request."""

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        response = super().dispatch(request, *args, **kwargs)
        if len(stage.runs) == 1 and response.status_code == 201 and "Idempotency-Replayed" not in response:
            raise RuntimeError("after the handler")
        return response

    @method_decorator(idempotent)
    def post(self, request: Any) -> Any:
        return act(request)


urlpatterns = [*views.urlpatterns, path("late/", FailingLate.as_view())]


@pytest.mark.parametrize("middleware", [True, False])
@pytest.mark.usefixtures("atomic_requests")
def test_an_answer_in_a_cache_is_stored_after_the_commit(
    site: Stage, sender: Sender, settings: Any, middleware: bool
) -> None:
    """What fails after the handler undoes the work, and the retry is not told that it was done. Without the middleware
    nobody tells whether the commit comes, and the claim runs out."""
    change(settings, STORAGE="cache", CLAIM_TTL=0.5, ON_CRASH="retry")
    settings.MIDDLEWARE = settings.MIDDLEWARE if middleware else settings.MIDDLEWARE[:-1]
    assert [sender.post("late").status_code for _ in range(2)] == [500, 201 if middleware else 409]
    assert (site.effects, len(site.runs)) == ((1, 2) if middleware else (0, 1))
    eventually(lambda: sender.post("late").status_code == 201, "the claim has not run out")
    again = sender.post("late")
    assert (again["Idempotency-Replayed"], site.effects) == ("true", 1)
