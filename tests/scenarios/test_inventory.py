"""Worker processes sell the last items on every engine, one of them asleep for longer than its lease lives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from testproject.inventory.models import InventoryRun
from testproject.inventory.records import WayResult, problems
from tests.support.sizes import LONG

from .databases import manage

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

pytestmark = pytest.mark.tier2

STOCK = 20


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "mariadb"] if LONG else ["sqlite"])
def test_the_replay(engine: str, migrated: Callable[[str], dict[str, str]]) -> None:
    using = ["--using=default"] if engine == "sqlite" else []  # elsewhere the default alias has no leases
    done = manage("replay_inventory", f"--stock={STOCK}", "--workers=4", *using, "--json", environment=migrated(engine))
    assert done.returncode == 0, done.stderr
    ways = {way["slug"]: way for way in json.loads(done.stdout)["ways"]}
    for slug in ("advisory", "row", "fenced", "saved", "trigger"):
        assert (ways[slug]["sold"], ways[slug]["left"], ways[slug]["oversold"]) == (STOCK, 0, 0)
    # the faults are real: without them the rest would prove nothing
    assert ways["none"]["left"] < 0
    assert ways["lease"]["oversold"] > 0
    assert [ways[slug]["late"] for slug in ways] == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("alias", "message"), [("postgres", "have no TTL"), ("mysql", "have no TTL"), ("nobody", "nobody")]
)
def test_an_alias_without_leases(databases: None, alias: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("replay_inventory", using=alias)


def result(slug: str = "fenced", prevents: bool = True, **figures: Any) -> WayResult:
    known = {"rounds": 1, "stock": STOCK, "sold": STOCK, "left": 0, "late": 1, "seconds": 1.0, "per_second": 20.0}
    return WayResult(slug=slug, title=slug, prevents=prevents, **{**known, "errors": [], **figures})


@pytest.mark.parametrize(
    ("way", "found"),
    [
        (result(), []),
        (result(sold=STOCK + 1), ["fenced: 21 units of 20 sold, 0 left."]),
        (result(left=-1), ["fenced: 20 units of 20 sold, -1 left."]),
        (result(late=0), ["fenced: the worker that slept was not refused."]),
        (result(errors=["KeyError: 1"]), ["fenced: KeyError: 1"]),
        (result("none", False), ["none: nothing was sold twice in 1 rounds; the fault was not shown."]),
        (result("none", False, sold=STOCK + 2, left=-2), []),
    ],
)
def test_the_verdict(way: WayResult, found: list[str]) -> None:
    assert list(problems([way], {"fenced"})) == found


@pytest.mark.django_db
def test_the_page(client: Client) -> None:
    assert "There is none yet" in client.get("/inventory/").text
    way = {"slug": "none", "title": "No lock", "oversold": 2, "stock": 20, "sold": 22, "left": -2, "late": 0}
    figures = {"engine_name": "SQLite", "engine_version": "3.40", "workers": 4, "problems": ["none: <broken>"]}
    InventoryRun.objects.create(engine="sqlite", result={**figures, "ways": [{**way, "per_second": 3.2}]})
    page = client.get("/inventory/").text
    assert "22 (2 too many)" in page
    assert '<strong class="alarm">2</strong>' in page
    assert "none: &lt;broken&gt;" in page
    assert page.count("<svg") == 2
    assert 'href="/inventory/"' in client.get("/").text
