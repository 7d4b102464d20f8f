"""The wallet's pages and its replay over real HTTP, and what the replay calls a problem."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from testproject.replay.records import Times
from testproject.wallet.models import Account, ReplayRun
from testproject.wallet.records import Pairs, Transfers, WayResult, problems
from testproject.wallet.ways import WAYS
from tests.support.sizes import LONG

from .databases import demo_database, manage
from .test_pages import Page

if TYPE_CHECKING:
    from django.http import HttpResponse
    from django.test import Client

pytestmark = pytest.mark.tier2

JSON = {"accept": "application/json"}
SLUGS = [way.slug for way in WAYS]
ENGINES = ("sqlite", "postgres", "mariadb") if LONG else ("sqlite",)


@pytest.fixture
def pks(transactional_db: None) -> list[int]:
    return [Account.objects.create(owner=owner, balance=1000).pk for owner in ("ann", "bob")]


def balances() -> list[int]:
    return list(Account.objects.values_list("balance", flat=True))


def post(client: Client, path: str, headers: dict[str, str] | None = JSON, **form: Any) -> HttpResponse:
    return client.post(f"/wallet/{path}/", form, headers=headers)


@pytest.mark.parametrize("way", SLUGS)
def test_money_is_paid_while_there_is_enough(client: Client, pks: list[int], way: str) -> None:
    answers = [post(client, f"withdraw/{way}", account=pks[0], amount=600).status_code for _ in range(2)]
    assert answers == [200, 409]
    answers = [post(client, f"transfer/{way}", account=pks[1], target=pks[0], amount=600).status_code for _ in range(2)]
    assert answers == [200, 409]
    assert balances() == [1000, 400]


@pytest.mark.parametrize("way", SLUGS)
def test_a_person_gets_forms_and_words(client: Client, pks: list[int], way: str) -> None:
    form = {"account": pks[0], "amount": 600}
    done = client.post(f"/wallet/withdraw/{way}/", form, follow=True)
    assert done.redirect_chain == [(f"/wallet/withdraw/{way}/", 302)]
    assert "Withdraw: done." in done.text
    refused = client.post(f"/wallet/withdraw/{way}/", form)
    assert (refused.status_code, "not enough money" in refused.text) == (409, True)


@pytest.mark.parametrize(
    ("path", "form", "status"),
    [
        ("withdraw/row", {"account": "x", "amount": 1}, 400),
        ("withdraw/row", {"account": 1, "amount": -1}, 400),
        ("transfer/row", {"account": 7, "target": 7, "amount": 1}, 400),
        ("withdraw/row", {"account": 10**9, "amount": 1}, 404),
        ("transfer/advisory", {"account": 10**9, "target": 1, "amount": 1}, 404),
        ("withdraw/queue", {"account": 1, "amount": 1}, 404),
        ("balance", {"account": 10**9}, 404),
        ("balance", {"account": ""}, 400),
    ],
)
def test_bad_requests(client: Client, pks: list[int], path: str, form: dict[str, Any], status: int) -> None:
    assert post(client, path, **form).status_code == status
    assert balances() == [1000, 1000]


def test_a_balance(client: Client, pks: list[int]) -> None:
    assert client.get("/wallet/balance/").status_code == 200
    assert post(client, "balance", account=pks[0]).json()["balance"] == 1000
    assert "ann has 1000" in client.post("/wallet/balance/", {"account": pks[0]}, follow=True).text


def test_the_page_without_a_replay_says_how_to_make_one(client: Client, transactional_db: None) -> None:
    page = client.get("/wallet/")
    assert "manage.py replay_wallet" in page.text
    for way in SLUGS:
        assert f'href="/wallet/withdraw/{way}/"' in page.text
        assert f'href="/wallet/transfer/{way}/"' in page.text
    assert 'href="/wallet/"' in client.get("/").text


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_the_replay_over_http(client: Client, transactional_db: None, tmp_path: Any, engine: str) -> None:
    """Every right way pays exactly one of each pair and keeps the money together; without a lock it shows."""
    with demo_database(engine, tmp_path) as environment:
        done = manage("replay_wallet", "--pairs=32", "--transfers=64", "--json", environment=environment)
    print(done.stderr)
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result["problems"] == []
    assert [way["slug"] for way in result["ways"]] == SLUGS
    none, *right = result["ways"]
    assert none["pairs"]["both"] > 0 or none["transfers"]["drift"] != 0
    for way in right:
        assert way["pairs"] == {"count": 32, "both": 0, "neither": 0, "wrong": 0}
        assert (way["transfers"]["drift"], way["failed"], way["errors"]) == (0, 0, [])
    ReplayRun.objects.create(engine=result["engine"], result=result)
    page = Page.of(client.get("/wallet/"))
    assert page.rows["Row lock"][:4] == ["Row lock", "32", "0", "0"]
    assert len(page.descriptions) == 2
    assert f"No lock: {none['pairs']['both']};" in page.descriptions[0]
    assert page.scopes == {"col", "row"}


def test_a_bad_way_names_the_good_ones() -> None:
    with pytest.raises(CommandError, match=r"unknown way queue; choose from none, row, table, advisory"):
        call_command("replay_wallet", "--ways=row,queue")


TIMES = Times(count=1, p50=1.0, p99=1.0)
GOOD = WayResult(
    slug="row",
    title="Row lock",
    prevents=True,
    rounds=1,
    pairs=Pairs(count=9, both=0, neither=0, wrong=0),
    transfers=Transfers(count=9, done=9, drift=0, per_second=1.0, times=TIMES),
    look_ups=TIMES,
    failed=0,
    errors=[],
)


@pytest.mark.parametrize(
    "changes",
    [
        {"pairs": replace(GOOD.pairs, both=1)},
        {"pairs": replace(GOOD.pairs, neither=1)},
        {"pairs": replace(GOOD.pairs, wrong=1)},
        {"transfers": replace(GOOD.transfers, drift=-1)},
        {"failed": 1, "errors": ["500"]},
        {"prevents": False},
    ],
)
def test_each_fault_is_called_a_problem(changes: dict[str, Any]) -> None:
    assert list(problems([GOOD])) == []
    assert len(list(problems([replace(GOOD, **changes)]))) == 1
