"""Three copies of a scheduler: the leader is killed, the next one sleeps for longer than its lease lives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from testproject.scheduler.models import SchedulerRun
from testproject.scheduler.records import WayResult, problems
from tests.support.sizes import LONG

from .databases import manage

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

pytestmark = pytest.mark.tier2

TTL = 0.8
# A database, and a lock alias of any engine: one with fencing tokens, and one without.
FENCED = ("leasetable", "default", "redis", "zookeeper")
KINDS = [("sqlite", "leasetable"), ("sqlite", "postgres")]
if LONG:
    KINDS += [
        ("sqlite", "redis"),
        ("sqlite", "zookeeper"),
        ("sqlite", "default"),
        ("postgres", "leasetable"),
        ("mariadb", "leasetable"),
        ("postgres", "mysql"),
    ]


@pytest.mark.alone
@pytest.mark.timeout(120)
@pytest.mark.parametrize(("engine", "using"), KINDS)
def test_the_replay(engine: str, using: str, migrated: Callable[[str], dict[str, str]]) -> None:
    options = [f"--using={using}", f"--ttl={TTL}", "--json"]
    if not LONG and using == "postgres":
        options.append("--ways=leader,fenced")
    done = manage("replay_scheduler", *options, environment=migrated(engine))
    assert done.returncode == 0, done.stderr
    ways = {way["slug"]: way for way in json.loads(done.stdout)["ways"]}
    assert all(way["missed"] == 0 for way in ways.values())
    if using in FENCED:
        # the faults are real: without them the rest would prove nothing
        assert ways["none"]["twice"] > 0
        assert ways["leader"]["twice"] > 0
        assert (ways["fenced"]["twice"], ways["fenced"]["late"]) == (0, 1)
    else:
        assert "no fencing tokens" in done.stderr
        assert (ways["leader"]["twice"], ways["leader"]["slept"]) == (0, False)


@pytest.mark.usefixtures("databases")
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--using=nowhere", "unknown alias nowhere; choose from default, memory"),
        ("--copies=2", "It takes 3 copies or more"),
        ("--ttl=0", "a TTL above zero"),
        ("--ways=x", "unknown way x; choose from none, leader, fenced"),
    ],
)
def test_bad_arguments(argument: str, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("replay_scheduler", argument)


def result(slug: str = "fenced", prevents: bool = True, **figures: Any) -> WayResult:
    known = {"slots": 20, "jobs": 20, "twice": 0, "missed": 0, "takeover": 0.9, "slept": True, "late": 1, "errors": []}
    return WayResult(slug=slug, title=slug, prevents=prevents, **{**known, **figures})


@pytest.mark.parametrize(
    ("way", "found"),
    [
        (result(), []),
        (result(twice=1), ["fenced: 1 slots were run twice."]),
        (result(missed=2), ["fenced: 2 slots were not run."]),
        (result(takeover=1.9), ["fenced: nobody led for 1.9 s after the leader was killed."]),
        (result(late=0), ["fenced: the leader that slept was not refused."]),
        (result(late=0, slept=False), []),
        (result(errors=["KeyError: 1"]), ["fenced: KeyError: 1"]),
        (result("leader", False, late=0), ["leader: no slot was run twice; the fault was not shown."]),
        (result("leader", False, late=0, twice=3), []),
    ],
)
def test_the_verdict(way: WayResult, found: list[str]) -> None:
    assert list(problems([way], TTL)) == found


def test_a_lock_may_outlive_its_leader_by_the_session_timeout() -> None:
    assert list(problems([result(takeover=2.9)], 2.0)) == []


@pytest.mark.django_db
def test_the_page(client: Client) -> None:
    assert "There is none yet" in client.get("/scheduler/").text
    way = {"slug": "leader", "title": "Leader alone", "slots": 13, "jobs": 17, "twice": 4, "missed": 0, "late": 0}
    figures = {"engine_name": "SQLite", "engine_version": "3.40", "using": "leasetable", "copies": 3, "ttl": 1.0}
    ways = [{**way, "takeover": None}, {**way, "takeover": 0.84}]
    SchedulerRun.objects.create(engine="sqlite", result={**figures, "problems": ["leader: <broken>"], "ways": ways})
    page = client.get("/scheduler/").text
    assert "17 for 13, 4 twice" in page
    assert '<strong class="alarm">4</strong>' in page
    assert "leader: &lt;broken&gt;" in page
    assert page.count("<svg") == 2
    assert 'href="/scheduler/"' in client.get("/").text
