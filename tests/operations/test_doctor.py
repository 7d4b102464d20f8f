"""``manage.py distlock doctor``: what it says of servers that are well, of the site key, and of values that servers
answer which do not run here (old versions), or that no test can bring about (a full table of locks)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import BackendUnavailable, held_locks
from django_distlock.backends.memory import MemoryBackend
from django_distlock.backends.mysql import doctor as mysql
from django_distlock.backends.postgres import doctor as postgres
from django_distlock.backends.redis import doctor as redis
from django_distlock.backends.zookeeper import doctor as zookeeper
from django_distlock.operations import doctor
from django_distlock.operations.doctor import diagnose
from tests.engines.redis.server import url
from tests.operations.commands.calling import call

if TYPE_CHECKING:
    from django_distlock.records import Finding

pytestmark = pytest.mark.usefixtures("databases")

CANARY = "canary-of-a-password"
REDIS = "django_distlock.backends.redis.RedisBackend"
MEMORY = "django_distlock.backends.memory.MemoryBackend"


def said(settings: Any, backend: str, **options: Any) -> dict[str, list[str]]:
    """level -> texts with their hints, of one alias."""
    settings.DISTLOCK = {"sick": {"BACKEND": backend, "OPTIONS": options}}
    found: dict[str, list[str]] = {"error": [], "warning": [], "info": []}
    for finding in diagnose("sick"):
        if finding.alias:
            assert finding.alias == "sick"
            found[finding.level].append(f"{finding.text} {finding.hint}")
    return found


def test_servers_that_are_well(using: str) -> None:
    """Every backend: nothing is wrong, and nothing is left behind."""
    status, out, _ = call("doctor", "--using", using)
    assert status == 0, out
    assert "A lock was acquired and released in" in out
    assert out.endswith("0 errors, 0 warnings.\n")
    assert not [info for info in held_locks(using)[0].locks if info.name == doctor.DOCTOR]


def test_json_has_stable_keys(settings: Any) -> None:
    settings.DISTLOCK = {"default": {"BACKEND": MEMORY}}
    status, out, _ = call("doctor", "--json")
    findings = json.loads(out)["findings"]
    assert status == 0
    assert {tuple(finding) for finding in findings} == {("level", "text", "hint", "alias")}


def test_an_error_is_the_exit_status(settings: Any) -> None:
    """And no password is in what is said."""
    settings.DISTLOCK = {
        "default": {"BACKEND": "no.such.Thing"},
        "down": {"BACKEND": REDIS, "OPTIONS": {"url": f"redis://:{CANARY}@127.0.0.1:1/0"}},
        "wrong": {"BACKEND": REDIS, "OPTIONS": {"url": url().replace("redis://:", f"redis://nobody:{CANARY}")}},
    }
    status, out, err = call("doctor")
    assert status == 1
    for alias in settings.DISTLOCK:
        assert f"{alias}: error: " in out
    assert CANARY not in out + err
    assert str(settings.DISTLOCK_SITE_KEY) not in out + err


@pytest.mark.parametrize(
    ("error", "level", "text"),
    [
        (ZeroDivisionError(CANARY), "warning", "The server could not be examined: ZeroDivisionError."),
        (BackendUnavailable("It went away."), "error", "It went away."),
    ],
)
def test_a_server_unlike_all_that_we_know(
    monkeypatch: pytest.MonkeyPatch, error: Exception, level: str, text: str
) -> None:
    def strange(self: MemoryBackend) -> list[Finding]:
        raise error

    monkeypatch.setattr(MemoryBackend, "diagnose", strange)
    assert [(each.level, each.text) for each in diagnose("memory") if each.level != "info"] == [(level, text)]


@pytest.mark.parametrize(
    ("setting", "row", "level", "text"),
    [
        (None, "x", "info", "comes from the database"),
        ("x" * 32, CANARY, "info", "has another one"),
        ("x" * 32, None, "info", "comes from DISTLOCK_SITE_KEY."),
        (None, None, "error", "There is no site key"),
        (5, "x", "error", "must be a str"),
    ],
)
def test_where_the_site_key_comes_from(
    settings: Any, monkeypatch: pytest.MonkeyPatch, setting: Any, row: str | None, level: str, text: str
) -> None:
    def read() -> str:
        if row is None:
            raise BackendUnavailable("There is no site key for django-distlock.")
        return row

    monkeypatch.setattr(doctor, "read_row", read)
    settings.DISTLOCK_SITE_KEY = setting
    found = diagnose("leasetable") if level == "error" else diagnose("memory")
    (finding,) = (finding for finding in found if not finding.alias)
    assert finding.level == level
    assert text in finding.text
    assert CANARY not in str(found)
    # without a key no lock is tried; what is wrong is said once, and the server is examined all the same
    if level == "error":
        assert [each.alias for each in found if each.level == "error"] == [""]
        assert "processes of this host only" in str(found)


# --- values

PG = postgres.PostgresFacts(
    version="15.1", number="150001", standby="f", tcp="t", keepalive="60", idle="0", connections="97", used="7",
    places="6400", taken="12", sees_all="t",
)  # fmt: skip
INFO = {"redis_version": "7", "role": "master", "aof_enabled": "1", "maxmemory_policy": "noeviction"}
ROOT = [("GRANT SELECT, INSERT, SHUTDOWN, PROCESS, FILE ON *.* TO `root`@`%` WITH GRANT OPTION",)]
ALL = [("GRANT ALL PRIVILEGES ON *.* TO `a`@`%` IDENTIFIED BY PASSWORD '*X'",)]
# a database, or an account, of that name is none of the privilege
POOR = [("GRANT USAGE ON *.* TO `process`@`%`",), (b"GRANT ALL PRIVILEGES ON `process`.* TO `a`@`%`",)]
OLD, NEW = (f"Zookeeper version: {number}, built on\nMode: leader\n" for number in ("3.5.2-alpha-1", "3.8.0-${x}"))


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (postgres.of_server(PG), []),
        (postgres.of_server(PG._replace(number="139999")), ["warning: does not notice that a waiter has gone"]),
        (postgres.of_server(PG._replace(standby="t")), ["error: is a standby"]),
        (postgres.of_server(PG._replace(keepalive="0")), ["info: tcp_keepalives_idle is not set"]),
        (postgres.of_server(PG._replace(idle="5000")), ["info: 5000 ms"]),
        (postgres.of_server(PG._replace(sees_all="f")), ["info: pg_read_all_stats"]),
        (postgres.of_room(PG._replace(used="88", taken="3200"), 9), []),
        (postgres.of_room(PG._replace(used="89"), 9), ["warning: 89 of 97 connections are in use"]),
        (postgres.of_room(PG._replace(taken="3201"), 9), ["warning: about 6400, of which 3201 are taken"]),
        (mysql.of_role(b"OFF", [(1,)]), []),  # MariaDB 12
        (mysql.of_role(0, []), []),
        (mysql.of_role("NO_LOCK", [(3,)]), ["warning: read-only", "warning: a group of 3"]),
        (mysql.of_listing(True, [(0,)], ROOT), []),
        (mysql.of_listing(True, [], ALL), ["warning: INSTALL SONAME"]),  # an error of the server
        (mysql.of_listing(False, [(0,), (b"1.0000",)], ALL), []),
        (mysql.of_listing(False, [(0,), (None,)], ROOT), ["warning: enable the instrument"]),
        (mysql.of_listing(False, [(0,)], ROOT), ["warning: enable the instrument"]),  # performance_schema is off
        (mysql.of_listing(True, [(0,)], POOR), ["warning: GRANT PROCESS"]),
        (mysql.of_listing(False, [(0,), (b"1",)], []), ["info: GRANT PROCESS"]),
        (redis.of_server(redis.RedisFacts(INFO, 60.0)), ["warning: 60.0 s ahead of this host's"]),
        (redis.of_server(redis.RedisFacts(INFO, -3600.0)), ["warning: set back ends those of dead holders"]),
        (redis.of_server(redis.RedisFacts({}, 0.0)), ["info: may not call INFO"]),
        (zookeeper.of_server("host:2181", NEW), ["info: host:2181: ZooKeeper 3.8.0, leader."]),
        (zookeeper.of_server("host:2181", OLD), ["error: host:2181: ZooKeeper 3.5.2, leader."]),
        (zookeeper.of_server("host:2181", "srvr is not executed"), ["info: does not give its version"]),
        (zookeeper.of_server("host:2181", None), ["warning: host:2181 does not answer"]),
    ],
)
def test_values_that_servers_answer(findings: Any, expected: list[str]) -> None:
    # the first thing that PostgreSQL and Redis are told of is their version
    found = [each for each in list(findings) if each.text not in ("PostgreSQL 15.1.", "Redis 7.")]
    assert len(found) == len(expected), found
    for finding, wanted in zip(found, expected, strict=True):
        level, _, text = wanted.partition(": ")
        assert (finding.level, text in f"{finding.text} {finding.hint}") == (level, True), finding
