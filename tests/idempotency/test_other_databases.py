"""Databases of other vendors (Oracle, SQL Server, CockroachDB, ...): portable statements.

The stand-in is a server whose vendor the library does not know: PostgreSQL, MariaDB and SQLite under another name, as
a backend that is derived from one of Django's has it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests.idempotency.conftest import Sender, every_database, expire, states
from tests.idempotency.test_forms import Browser
from tests.idempotency.test_races import at_once
from tests.idempotency.views import redirect
from tests.support.findings import findings

if TYPE_CHECKING:
    from tests.idempotency.views import Stage

SHAPES = pytest.mark.parametrize("shape", ["plain", "atomic", "async"])


@pytest.fixture(autouse=True)
def other_vendor(site: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the database a vendor that no code knows."""
    monkeypatch.setattr(type(connections[site.alias]), "vendor", "unheard_of")


@every_database
@SHAPES
def test_a_request_acts_once(site: Stage, sender: Sender, shape: str) -> None:
    """Naive code sends SQLite's statements: each request with a key is answered 503."""
    first, again, other = sender.post(shape), sender.post(shape), sender.post(shape, {"name": "other"})
    assert (first.status_code, again.status_code, other.status_code) == (201, 201, 422)
    assert again["Idempotency-Replayed"] == "true"
    assert again.content == first.content
    assert site.effects == 1
    assert states(site.alias) == ["completed"]


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_of_many_at_once_one_runs(site: Stage, sender: Sender, shape: str) -> None:
    found = {answer.status_code for answer in at_once(lambda: Sender(sender.key).post(shape), 4)}
    assert found <= {201, 409}
    assert sender.post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_a_view_that_raises_frees_its_key(site: Stage, sender: Sender, shape: str) -> None:
    site.during = lambda request: 1 / 0
    assert sender.post(shape).status_code == 500
    site.during = lambda request: None
    assert sender.post(shape).status_code == 201
    assert states(site.alias) == ["completed"]


@every_database
def test_a_claim_that_ran_out(site: Stage, sender: Sender) -> None:
    sender.post("plain")
    with connections[site.alias].cursor() as cursor:
        cursor.execute("UPDATE django_distlock_idempotency SET state = 'claimed', status = NULL")
    expire(site.alias)
    assert sender.post("plain").json()["code"] == "outcome_unknown"
    assert states(site.alias) == ["unknown"]
    again = Sender("again")
    again.post("retry")
    with connections[site.alias].cursor() as cursor:
        cursor.execute("UPDATE django_distlock_idempotency SET state = 'claimed' WHERE state = 'completed'")
    expire(site.alias)
    assert again.post("retry").status_code == 201
    assert site.effects == 3


def test_a_claim_is_renewed(site: Stage, sender: Sender) -> None:
    """The view takes longer than its lease."""

    def outlast(request: Any) -> None:
        before = seen()
        deadline = time.monotonic() + 20
        while seen() == before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert seen() > before

    def seen() -> int:
        with connections[site.alias].cursor() as cursor:
            cursor.execute("SELECT expires_at FROM django_distlock_idempotency")
            return int(cursor.fetchone()[0])

    site.during = outlast
    assert sender.post("brief").status_code == 201


@every_database
def test_a_form(site: Stage) -> None:
    site.answer = redirect
    browser = Browser()
    fields = browser.open("atomic_form")
    assert [browser.send(fields, "atomic_form")["Location"] for _ in range(2)] == ["/made/1/"] * 2
    assert site.effects == 1


@every_database
def test_there_is_nothing_to_say(site: Stage) -> None:
    assert [message.id for message in findings()] == []
