"""``manage.py distlock doctor``: what it says to values that servers answer which do not run here (MySQL, old
versions), or that no test can bring about (a full table of locks)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock import BackendUnavailable
from django_distlock.backends.memory import MemoryBackend
from django_distlock.backends.mysql import doctor as mysql_doctor
from django_distlock.backends.postgres import doctor as postgres_doctor
from django_distlock.backends.redis.doctor import RedisFacts as RedisFacts
from django_distlock.backends.redlock import doctor as redlock_doctor
from django_distlock.backends.zookeeper import doctor as zookeeper_doctor
from django_distlock.manager.registry import registry
from django_distlock.operations import doctor
from django_distlock.operations.doctor import diagnose
from tests.faults.conftest import database_alias
from tests.faults.server import ask
from tests.operations.test_doctor import said
from tests.operations.test_doctor_servers import LEASES, POSTGRES

if TYPE_CHECKING:
    from django_distlock.records import Finding

WELL = postgres_doctor.PostgresFacts(
    version="15.1", number="150001", standby="f", tcp="t", keepalive="60", idle="0", connections="97", used="7",
    places="6400", taken="12", sees_all="t",
)  # fmt: skip


def texts(findings: Any, level: str = "warning") -> list[str]:
    return [finding.text for finding in findings if finding.level == level]


# PostgreSQL


@pytest.mark.parametrize(
    ("changed", "level", "text"),
    [
        ({"number": "139999"}, "warning", "does not notice that a waiter has gone"),
        ({"standby": "t"}, "error", "is a standby"),
        ({"keepalive": "0"}, "info", "tcp_keepalives_idle is not set"),
        ({"idle": "5000"}, "info", "5000 ms"),
        ({"sees_all": "f"}, "info", "pg_read_all_stats"),
    ],
)
def test_a_fact_of_postgres(changed: dict[str, str], level: str, text: str) -> None:
    before, after = (list(postgres_doctor.of_server(facts)) for facts in (WELL, WELL._replace(**changed)))
    assert [finding.text for finding in before] == ["PostgreSQL 15.1."]
    (more,) = after[1:]
    assert more.level == level
    assert text in more.text


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({}, None),
        ({"used": "88"}, None),
        ({"used": "89"}, "89 of 97 connections are in use"),
        ({"taken": "3200"}, None),
        ({"taken": "3201"}, "room for about 6400, of which 3201 are taken"),
    ],
)
def test_room_on_postgres(changed: dict[str, str], text: str | None) -> None:
    found = texts(postgres_doctor.of_room(WELL._replace(**changed), 9))
    assert [text in each for each in found] == [True] * bool(text)


def test_a_host_that_vanishes_within_a_transaction(settings: Any, databases: None) -> None:
    """The doctor's own session has keepalives: it is the others' that count, with what their OPTIONS say."""
    assert any("tcp_keepalives_idle" in text for text in said(settings, POSTGRES, database="postgres")["info"])
    registry.close()
    options = {**connections.settings["postgres"].get("OPTIONS", {}), "options": "-c tcp_keepalives_idle=60"}
    with database_alias("kept", "postgres", OPTIONS=options) as alias:
        found = said(settings, POSTGRES, database=alias)
        registry.close()
    assert not any("tcp_keepalives_idle" in text for text in found["info"])


# MySQL and MariaDB


@pytest.mark.parametrize(
    ("read_only", "members", "words"),
    [
        (0, [], []),
        (0, [(1,)], []),
        (b"OFF", [], []),  # MariaDB 12
        (1, [], ["read-only"]),
        ("ON", [], ["read-only"]),
        ("NO_LOCK", [], ["read-only"]),
        (0, [(3,)], ["a group of 3"]),
        (1, [(2,)], ["read-only", "a group of 2"]),
    ],
)
def test_replicas_and_groups(read_only: Any, members: Any, words: list[str]) -> None:
    found = texts(mysql_doctor.of_role(read_only, members))
    assert [word in text for word, text in zip(words, found, strict=True)] == [True] * len(words)


ROOT = [("GRANT SELECT, INSERT, SHUTDOWN, PROCESS, FILE ON *.* TO `root`@`%` WITH GRANT OPTION",)]
POOR = [("GRANT USAGE ON *.* TO `a`@`%`",), (b"GRANT ALL PRIVILEGES ON `process`.* TO `a`@`%`",)]


@pytest.mark.parametrize(
    ("mariadb", "shown", "cure"),
    [
        (True, [(0,)], None),
        (True, [], "INSTALL SONAME"),  # an error of the server
        (False, [(0,), (b"1.0000",)], None),
        (False, [(0,), (None,)], "enable the instrument"),
        (False, [(0,)], "enable the instrument"),  # performance_schema is off
        (False, [], "enable the instrument"),
    ],
)
def test_what_may_be_listed(mariadb: bool, shown: Any, cure: str | None) -> None:
    hints = [finding.hint for finding in mysql_doctor.of_listing(mariadb, shown, ROOT)]
    assert [str(cure) in hint for hint in hints] == [True] * bool(cure)


@pytest.mark.parametrize(
    ("grants", "enough"),
    [
        (ROOT, True),
        ([("GRANT ALL PRIVILEGES ON *.* TO `a`@`%` IDENTIFIED BY PASSWORD '*X'",)], True),
        ([("GRANT PROCESS ON *.* TO `a`@`%`",)], True),
        (POOR, False),  # a database of that name is none of the privilege
        ([("GRANT USAGE ON *.* TO `process`@`%`",)], False),
        ([], False),
    ],
)
def test_the_privilege_to_see_others(grants: Any, enough: bool) -> None:
    hints = [finding.hint for finding in mysql_doctor.of_listing(True, [(0,)], grants)]
    assert ["GRANT PROCESS" in hint for hint in hints] == [True] * (not enough)


INSTRUMENT = "UPDATE performance_schema.setup_instruments SET ENABLED = %s WHERE NAME = 'wait/lock/metadata/sql/mdl'"


def test_the_statement_for_mysql_on_a_server_that_knows_it_too(databases: None) -> None:
    """MariaDB has the same tables under the same names."""
    backend: Any = registry.entry("mysql").backend
    try:
        for enabled in ("YES", "NO"):
            ask("mysql", INSTRUMENT, enabled)
            shown = mysql_doctor._asked(backend._ask, mysql_doctor.USER_LOCKS_MYSQL)
            assert mysql_doctor.looks(shown) == (enabled == "YES")
    finally:
        ask("mysql", INSTRUMENT, "YES")


# the others


def test_leases_in_memory(settings: Any, databases: None) -> None:
    with database_alias("in_memory", "default", NAME=":memory:") as alias:
        warnings = said(settings, LEASES, database=alias)["warning"]
    assert any("no other process sees them" in warning for warning in warnings), warnings


def test_nodes_of_redlock_that_may_not_be_asked() -> None:
    """Whether two of them are one server is not known then."""
    nobody = RedisFacts({}, 0.0)
    same = RedisFacts({"run_id": "1"}, 0.0)
    assert not list(redlock_doctor._same({1: nobody, 2: nobody, 3: same}))
    assert len(list(redlock_doctor._same({1: same, 2: nobody, 3: same}))) == 1


@pytest.mark.parametrize(
    ("told", "level", "text"),
    [
        ("Zookeeper version: 3.8.0-${mvngit.commit.id}, built on\nMode: leader\n", "info", "ZooKeeper 3.8.0, leader."),
        ("Zookeeper version: 3.5.2-alpha-1, built on\nMode: standalone\n", "error", "3.5.2, standalone."),
        ("This ZooKeeper instance is not currently serving requests", "info", "does not give its version"),
        ("srvr is not executed because it is not in the whitelist.", "info", "does not give its version"),
        (None, "warning", "does not answer"),
    ],
)
def test_what_servers_of_zookeeper_answer(told: str | None, level: str, text: str) -> None:
    (finding,) = zookeeper_doctor.of_server("host:2181", told)
    assert (finding.level, text in finding.text) == (level, True)
    assert finding.text.startswith("host:2181")


# diagnose()


def test_a_server_that_goes_away_between_two_questions(monkeypatch: pytest.MonkeyPatch, databases: None) -> None:
    def away(self: MemoryBackend) -> list[Finding]:
        raise BackendUnavailable("It went away.")

    monkeypatch.setattr(MemoryBackend, "diagnose", away)
    assert texts(diagnose("memory"), "error") == ["It went away."]


def test_without_a_site_key_no_lock_is_tried(settings: Any, databases: None) -> None:
    """What is wrong is said once, and the server is examined all the same."""
    settings.DISTLOCK_SITE_KEY = 5
    found = diagnose("leasetable")
    assert [finding.alias for finding in found if finding.level == "error"] == [""]
    assert any("excludes processes of this host only" in finding.text for finding in found)
    assert doctor.DOCTOR not in str(found)
