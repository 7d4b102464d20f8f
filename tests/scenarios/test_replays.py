"""The scenes as a person runs them: `manage.py demo`, and each replay on the databases that it names."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest

from .databases import ROOT, demo_database, demo_environment, manage

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.timeout(240), pytest.mark.tier2]
Ways = dict[str, list[dict[str, Any]]]


def replayed(scene: str, engine: str, folder: Path, *options: str, **environment: str) -> Ways:
    """The rows of a replay that went as promised, by way."""
    with demo_database(engine, folder) as found:
        done = manage("replay", scene, *options, "--json", environment=found | environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result.get("problems", []) == []
    return {way["slug"]: way["rows"] for way in result["ways"]}


@pytest.mark.parametrize(("engine", "atomic"), [("sqlite", False), ("postgres", True), ("mariadb", True)])
def test_200_identical_sign_ups_over_four_server_processes_make_one_account(
    engine: str, atomic: bool, tmp_path: Path
) -> None:
    """R12: the lock comes before the request's transaction and goes after its commit. With a connection for each
    request, as Django has it, or kept for later ones, as many sites do."""
    environment = {"DISTLOCK_ATOMIC_REQUESTS": str(int(atomic)), "DISTLOCK_CONN_MAX_AGE": "60" if atomic else "0"}
    ways = replayed("registration", engine, tmp_path, "--identical=200", "--distinct=0", **environment)
    assert list(ways) == ["none", "table", "row", "advisory", "advisory-per-email"]
    assert [row["processes"] for (row,) in ways.values()] == [4] * 5
    (none,) = ways.pop("none")
    assert none["errors"] == []
    assert none["duplicates"] > 0  # the fault is real: without it the rest would prove nothing
    for slug, (row,) in ways.items():
        assert (row["errors"], row["answers"]) == ([], "1 x 201, 199 x 409"), slug
        assert (row["accounts"], row["duplicates"]) == (1, 0)
        assert row["log_in_while_held"] == (True if "advisory" in slug else None)


@pytest.mark.parametrize("engine", ["sqlite", "postgres", "mariadb"])
def test_the_wallet_pays_once_and_keeps_the_money_together(engine: str, tmp_path: Path) -> None:
    ways = replayed("wallet", engine, tmp_path, "--pairs=32", "--transfers=64")
    (none,) = ways.pop("none")
    assert none["both"] > 0 or none["drift"] != 0
    for (row,) in ways.values():
        assert [row[name] for name in ("pairs", "both", "neither", "drift")] == [32, 0, 0, 0]
        assert row["errors"] == []


def test_an_order_that_is_sent_twenty_times_is_one(tmp_path: Path) -> None:
    ways = replayed("orders", "sqlite", tmp_path, "--clicks=20", DISTLOCK_DEMO_PAYMENT_SECONDS="0.3")
    assert [(row["orders"], row["payments"]) for row in ways.pop("none")] == [(20, 20)] * 2
    for row in [row for rows in ways.values() for row in rows]:
        assert (row["orders"], row["payments"], row["first"], row["wrong"]) == (1, 1, 1, 0)
        assert row["first"] + row["replayed"] + row["busy"] == 20


def test_the_last_items_are_sold_once(tmp_path: Path) -> None:
    """One of the workers sleeps for longer than its lease lives."""
    ways = replayed("inventory", "sqlite", tmp_path, "--stock=20", "--workers=4")
    assert ways["none"][0]["left"] < 0
    assert ways["lease"][0]["oversold"] > 0
    for slug in ("fenced", "trigger"):
        assert [ways[slug][0][name] for name in ("sold", "left", "oversold")] == [20, 0, 0]
    assert [row["late"] for (row,) in ways.values()] == [0, 0, 1, 1]


def test_a_message_that_is_delivered_twice_acts_once(tmp_path: Path) -> None:
    """Also that of a consumer that was killed."""
    ways = replayed("consumer", "sqlite", tmp_path, "--messages=10", "--consumers=2")
    (each,), (once,) = ways.values()
    assert (each["twice"], each["drift"]) == (10, 0)
    assert (once["acts"], once["twice"], once["never"], once["drift"]) == (10, 0, 0, 0)


@pytest.mark.alone
def test_a_scheduler_runs_each_slot_once(tmp_path: Path) -> None:
    """The leader is killed, the next one sleeps for longer than its lease lives."""
    (none,), (leader,), (fenced,) = replayed("scheduler", "sqlite", tmp_path, "--ttl=0.8").values()
    assert [row["missed"] for row in (none, leader, fenced)] == [0, 0, 0]
    assert none["twice"] > 0
    assert leader["twice"] > 0
    assert (fenced["twice"], fenced["late"]) == (0, 1)


def test_the_demo_replays_and_serves_until_interrupted(tmp_path: Path) -> None:
    """On an empty SQLite file, started from another directory."""
    process = subprocess.Popen(
        [sys.executable, ROOT / "testproject" / "manage.py", "demo", "--identical=40", "--distinct=16"],
        cwd=tmp_path,
        env=demo_environment(
            {"DB": "sqlite", "DISTLOCK_DEMO_DB": str(tmp_path / "demo.sqlite3"), "DISTLOCK_DEMO_PAYMENT_SECONDS": "0.3"}
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output = ""
        for line in process.stdout or ():
            output += line
            if "Control-C" in line:
                break
        print(output)
        assert re.search(r"No lock: 40 identical sign-ups made \d+ accounts, \d+ too many", output)
        for way in ("Table lock", "Row lock", "Advisory lock", "Advisory lock per address"):
            assert f"{way}: 40 identical sign-ups made 1 account." in output
        for scene in ("Orders", "Articles", "Cart", "Board", "Workers"):
            assert re.search(rf"^{scene}: +http", output, re.MULTILINE), scene
        address = re.search(r"^Demo: +(\S+)$", output, re.MULTILINE)[1]
        assert "The latest replay" in get(address, "/")
        for scene in ("/wallet/", "/inventory/", "/orders/", "/scheduler/"):
            assert "Figures of the latest replay</caption>" in get(address, scene), scene
        assert "Log in" in get(address, "/admin/login/")
        assert "color-scheme" in get(address, "/static/registration/demo.css")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def get(address: str, path: str) -> str:
    with urlopen(address.rstrip("/") + path, timeout=10) as response:  # noqa: S310 - our own server
        return str(response.read().decode())


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ({"DB": "oracle"}, ["check"], "use sqlite, postgres or mariadb"),
        ({"DB": "postgres", "DISTLOCK_SERVICES": "/nonexistent/state.json"}, ["check"], "make services"),
        ({}, ["replay", "wallet"], "testproject/manage.py migrate --run-syncdb`"),
    ],
)
def test_bad_input_names_the_cure(
    tmp_path: Path, environment: dict[str, str], arguments: list[str], message: str
) -> None:
    done = manage(*arguments, environment={"DISTLOCK_DEMO_DB": str(tmp_path / "demo.sqlite3")} | environment)
    assert done.returncode != 0
    assert message in done.stderr
