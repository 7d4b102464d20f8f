"""200 identical sign-ups at once over 4 server processes, on every engine, with and without ATOMIC_REQUESTS."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import Replayed

# The first test that asks for a replay pays for it: databases, server and five ways.
pytestmark = [pytest.mark.timeout(240), pytest.mark.tier2]

ENGINES = ("sqlite", "postgres", "mariadb")
SETTINGS = [
    pytest.param(engine, atomic, id=f"{engine}-{'atomic' if atomic else 'autocommit'}")
    for engine in ENGINES
    for atomic in (False, True)
]


def way_of(result: dict[str, Any], slug: str) -> dict[str, Any]:
    return next(way for way in result["ways"] if way["slug"] == slug)


@pytest.mark.parametrize("way", ["table", "row", "advisory", "advisory-per-email"])
@pytest.mark.parametrize(("engine", "atomic"), SETTINGS)
def test_a_lock_makes_one_account_and_no_error(replayed: Replayed, engine: str, atomic: bool, way: str) -> None:
    """R12: the lock comes before the request's transaction and goes after its commit."""
    _, result = replayed(engine, atomic=atomic)
    phase = way_of(result, way)["identical"]
    assert phase["errors"] == []
    assert phase["statuses"] == {"201": 1, "409": 199}
    assert (phase["accounts"], phase["duplicates"]) == (1, 0)


@pytest.mark.parametrize(("engine", "atomic"), SETTINGS)
def test_every_server_process_took_part(replayed: Replayed, engine: str, atomic: bool) -> None:
    _, result = replayed(engine, atomic=atomic)
    assert [way["identical"]["processes"] for way in result["ways"]] == [4, 4, 4, 4, 4]


@pytest.mark.parametrize(("engine", "atomic"), [row for row in SETTINGS if row.id != "sqlite-atomic"])
def test_without_a_lock_one_address_gets_several_accounts(replayed: Replayed, engine: str, atomic: bool) -> None:
    """The fault is real: without it the other tests would prove nothing."""
    _, result = replayed(engine, atomic=atomic)
    phase = way_of(result, "none")["identical"]
    assert phase["errors"] == []
    assert phase["duplicates"] > 0
    assert phase["statuses"]["201"] == phase["accounts"]


def test_sqlite_serialises_whole_requests_under_atomic_requests(replayed: Replayed) -> None:
    """What the replay claims about this one setting, where it does not ask for the race to show."""
    _, result = replayed("sqlite", atomic=True)
    assert way_of(result, "none")["identical"]["accounts"] == 1


@pytest.mark.parametrize("way", ["advisory", "advisory-per-email"])
@pytest.mark.parametrize(("engine", "atomic"), SETTINGS)
def test_a_log_in_is_answered_while_a_registration_holds_the_lock(
    replayed: Replayed, engine: str, atomic: bool, way: str
) -> None:
    """By order of events: the registration has the lock and is kept at its insert until the log-in was answered."""
    _, result = replayed(engine, atomic=atomic)
    outcome = way_of(result, way)
    assert outcome["proof_problem"] == ""
    assert outcome["log_in_while_held"] is True


@pytest.mark.parametrize(("engine", "atomic"), SETTINGS)
def test_the_command_succeeds_only_without_problems(replayed: Replayed, engine: str, atomic: bool) -> None:
    status, result = replayed(engine, atomic=atomic)
    assert result["problems"] == []
    assert status == 0
