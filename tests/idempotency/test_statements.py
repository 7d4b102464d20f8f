"""What it costs: statements, counted where Django sends them and, on the servers, by the servers themselves."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.engines.statements import counted
from tests.idempotency.conftest import LOCKS, MIDDLEWARE, Sender, every_database
from tests.support.profiled import profiled

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.idempotency.views import Stage

ATOMIC = {"default": 2, "postgres": 2, "mariadb": 4}
FORM = "application/x-www-form-urlencoded"
NOT_OURS = ("BEGIN", "COMMIT", "ROLLBACK", "distlock_written", "COUNT(*)", "count(")


def ours(queries: Any) -> list[str]:
    return [query["sql"] for query in queries if not any(word in query["sql"] for word in NOT_OURS)]


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic", "async", "decorated", "exempt", "form"])
def test_without_a_key_nothing_is_asked(site: Stage, shape: str) -> None:
    Sender().post(shape)
    with CaptureQueriesContext(connections[site.alias]) as queries:
        assert Sender().post(shape).status_code == 201
    assert ours(queries) == []


@every_database
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_first_post_in_the_exactly_once_mode(
    site: Stage, monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    monkeypatch.setitem(connections.settings[site.alias], "ATOMIC_REQUESTS", in_transaction)
    Sender("warm").post("atomic")
    with CaptureQueriesContext(connections[site.alias]) as queries:
        assert Sender("first").post("atomic").status_code == 201
    assert len(ours(queries)) == 2, ours(queries)  # claim and answer; on MariaDB the lock has another session


@pytest.mark.parametrize("alias", ["postgres", "mariadb"])
def test_a_first_post_as_the_server_counts_it(site: Stage) -> None:
    for number in range(3):
        Sender(f"warm{number}").post("atomic")
    with counted(LOCKS[site.alias]) as found:
        for number in range(10):
            assert Sender(f"first{number}").post("atomic").status_code == 201
    mine = {
        text: calls
        for text, calls in found.items()
        if any(word in text for word in ("distlock_idempotency", "GET_LOCK", "RELEASE_LOCK", "pg_try_advisory"))
    }
    assert sum(mine.values()) == 10 * ATOMIC[site.alias], mine


@every_database
def test_a_first_post_otherwise(site: Stage) -> None:
    Sender("warm").post("plain")
    with CaptureQueriesContext(connections[site.alias]) as queries:
        Sender("first").post("plain")
    assert len(ours(queries)) == 2


@every_database
def test_a_replay(site: Stage) -> None:
    Sender("k").post("plain")
    with CaptureQueriesContext(connections[site.alias]) as queries:
        assert Sender("k").post("plain")["Idempotency-Replayed"] == "true"
    assert len(ours(queries)) == 2


def calls(send: Callable[[], Any]) -> int:
    """How many functions are called, those in C too."""
    found = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    with profiled(count):
        send()
    return found


@pytest.mark.parametrize(
    ("method", "kind", "most"), [("get", "", 15), ("post", "application/json", 15), ("post", FORM, 45)]
)
def test_what_the_middleware_does_for_a_request_without_a_key(
    site: Stage, settings: Any, method: str, kind: str, most: int
) -> None:
    """Ten per cent of a view that does nothing; counted, as a clock is not steady enough. Naive code reads all headers
    and asks the view for its options each time: 129 calls."""
    site.during = lambda request: request.POST  # forms are parsed in any case
    sent: Any = {"data": "{}", "content_type": kind} if method == "post" else {}
    found: list[int] = []
    for middleware in (MIDDLEWARE, MIDDLEWARE[:-1]):
        settings.MIDDLEWARE = middleware
        send = partial(getattr(Client(headers={"Authorization": "Bearer a"}), method), "/exempt_of_csrf/", **sent)
        for _ in range(3):
            send()
        found.append(min(calls(send) for _ in range(3)))
    assert 0 < found[0] - found[1] <= most, found
