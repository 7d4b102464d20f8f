"""``manage.py distlock doctor``: what it finds on servers that are well, and on those that are not."""

from __future__ import annotations

import io
import json
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connections
from redis import Redis

from django_distlock import diagnosis, held_locks
from django_distlock.backends import leasetable_doctor, redis_doctor
from django_distlock.diagnosis import diagnose
from django_distlock.records import BackendReport, Finding, LockInfo
from tests import services
from tests.backends.redis_server import Own, url
from tests.faults.server import ask

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")

CANARY = "canary-of-a-password"
BACKENDS = "django_distlock.backends"
POSTGRES, MYSQL = f"{BACKENDS}.postgres.AdvisoryBackend", f"{BACKENDS}.mysql.NamedLockBackend"
LEASES, REDIS = f"{BACKENDS}.leasetable.LeaseTableBackend", f"{BACKENDS}.redis.RedisBackend"
REDLOCK, ZOOKEEPER = f"{BACKENDS}.redlock.RedlockBackend", f"{BACKENDS}.zookeeper.ZooKeeperBackend"


def call(*arguments: str) -> tuple[int, str]:
    out = io.StringIO()
    try:
        call_command("distlock", "doctor", *arguments, stdout=out, no_color=True)
    except SystemExit as error:
        return int(error.code or 0), out.getvalue()
    return 0, out.getvalue()


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
    status, out = call("--using", using)
    assert status == 0, out
    assert "A lock was taken and given back in" in out
    assert out.endswith("0 errors, 0 warnings.\n")
    (report,) = held_locks(using)
    assert not [info for info in report.locks if info.name == diagnosis.DOCTOR]


def test_json_has_stable_keys() -> None:
    status, out = call("--json")
    findings = json.loads(out)["findings"]
    assert status == 0
    assert {tuple(finding) for finding in findings} == {("level", "text", "hint", "alias")}
    assert {finding["level"] for finding in findings} <= {"info", "warning", "error"}


def test_an_error_is_the_exit_status(settings: Any) -> None:
    """And no password is in what is said."""
    settings.DISTLOCK = {
        "default": {"BACKEND": "no.such.Thing"},
        "down": {"BACKEND": REDIS, "OPTIONS": {"url": f"redis://:{CANARY}@127.0.0.1:1/0"}},
        "wrong": {"BACKEND": REDIS, "OPTIONS": {"url": url().replace("redis://:", f"redis://nobody:{CANARY}")}},
    }
    status, out = call()
    assert status == 1
    for alias in settings.DISTLOCK:
        assert f"{alias}: error: " in out
    assert CANARY not in out
    assert str(settings.DISTLOCK_SITE_KEY) not in out
    assert call("--using", "nowhere")[0] == 1


# PostgreSQL


def test_a_pooler_in_front_of_session_locks(settings: Any) -> None:
    (error,) = said(settings, POSTGRES, database="pgbouncer")["error"]
    assert "session_database" in error
    assert not said(settings, POSTGRES, database="pgbouncer", session_database="postgres")["error"]


@contextmanager
def role(alias: str) -> Iterator[None]:
    """The account of a database alias is a poor one in the block."""
    name = f"poor_{secrets.token_hex(4)}"
    at = "@'127.0.0.1'" if alias == "mariadb" else ""
    settings = connections.settings[alias]
    database = settings["NAME"]
    if at:
        ask(alias, f"CREATE USER {name}{at} IDENTIFIED BY '{CANARY}'")
        ask(alias, f"GRANT ALL ON {database}.* TO {name}{at}")
    else:
        ask(alias, f"CREATE ROLE {name} LOGIN PASSWORD '{CANARY}'")
    before = settings["USER"], settings["PASSWORD"]
    connection = connections[alias]
    try:
        settings["USER"], settings["PASSWORD"] = connection.settings_dict["USER"], _ = name, CANARY
        connection.settings_dict["PASSWORD"] = CANARY
        yield
    finally:
        settings["USER"], settings["PASSWORD"] = before
        connection.settings_dict["USER"], connection.settings_dict["PASSWORD"] = before
        from django_distlock.registry import registry

        registry.reset()
        ask(alias, f"DROP {'USER' if at else 'ROLE'} {name}{at}")


def test_an_account_on_postgres_that_sees_little(settings: Any) -> None:
    with role("postgres"):
        found = said(settings, POSTGRES, database="postgres")
    assert not found["error"]
    assert any("GRANT pg_read_all_stats" in text for text in found["info"])


def test_limits_of_postgres(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"options": "-c idle_in_transaction_session_timeout=5000"}
    monkeypatch.setitem(connections.settings["postgres"], "OPTIONS", options)
    monkeypatch.setitem(connections["postgres"].settings_dict, "OPTIONS", options)
    found = said(settings, POSTGRES, database="postgres", wait_sessions=100_000)
    assert any("idle_in_transaction_session_timeout is 5000 ms" in text for text in found["info"])
    assert any("takes up to 100001" in text for text in found["warning"])


# MySQL and MariaDB


def test_an_account_on_mariadb_that_sees_little(settings: Any) -> None:
    with role("mariadb"):
        found = said(settings, MYSQL, database="mariadb", wait_sessions=100_000)
    assert not found["error"]
    warnings = " ".join(found["warning"])
    assert "GRANT PROCESS" in warnings
    assert "takes up to 100001" in warnings


# lease table


def test_a_table_that_is_not_there(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["postgres"], "NAME", "postgres")
    (error,) = said(settings, LEASES, database="postgres")["error"]
    assert "does not exist" in error
    assert "migrate --database=postgres" in error


def test_clocks_that_differ(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    behind = "SELECT extract(epoch FROM clock_timestamp()) - 60"
    monkeypatch.setitem(leasetable_doctor.CLOCKS, "postgresql", behind)
    (warning,) = said(settings, LEASES, database="postgres")["warning"]
    assert "s behind this host's" in warning
    (finding,) = (f for f in redis_doctor.of_server(redis_doctor.Facts(_WELL, 60.0)) if f.level == "warning")
    assert "60.0 s ahead of this host's" in finding.text


# Redis and Redlock

_WELL = {"redis_version": "7", "role": "master", "aof_enabled": "1", "maxmemory_policy": "noeviction"}


def test_a_redis_that_forgets_locks(settings: Any, tmp_path: Path) -> None:
    with Own(tmp_path) as server:
        assert not said(settings, REDIS, url=server.url)["warning"]
        server.client.config_set("maxmemory-policy", "volatile-lru")
        server.client.config_set("appendonly", "no")
        found = said(settings, REDIS, url=server.url)
        assert not found["error"]
        assert len(found["warning"]) == 2
        server.client.config_set("maxmemory", "100mb")
        (error,) = said(settings, REDIS, url=server.url)["error"]
        assert "noeviction" in error
        server.client.config_set("maxmemory", "0")
        server.client.execute_command("REPLICAOF", "127.0.0.1", "1")
        errors = said(settings, REDIS, url=server.url)["error"]
        assert any("is a replica" in text for text in errors)
        server.client.execute_command("REPLICAOF", "NO", "ONE")


def test_a_redis_that_is_replicated_or_says_nothing(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = redis_doctor.Facts({**_WELL, "connected_slaves": "1"}, 0.0)
    monkeypatch.setattr(redis_doctor, "facts", lambda target: facts)
    (warning,) = said(settings, REDIS, url=url())["warning"]
    assert "fail-over" in warning
    monkeypatch.setattr(redis_doctor, "facts", lambda target: redis_doctor.Facts({}, 0.0))
    assert any("may not call INFO" in text for text in said(settings, REDIS, url=url())["info"])


def node(number: int) -> str:
    server = services.load()[f"redis{number}"]
    return f"redis://:{server['password']}@{server['host']}:{server['port']}/0"


def test_one_server_under_two_addresses(settings: Any) -> None:
    """Two processes could hold one lock: half of the votes are the same server's."""
    again = node(1).replace("127.0.0.1", "localhost")
    assert again != node(1)
    found = said(settings, REDLOCK, nodes=[node(1), again, node(2)])
    assert any("The nodes 1 and 2 are the same server" in text for text in found["error"])


def test_nodes_that_do_not_answer(settings: Any) -> None:
    away = f"redis://:{CANARY}@127.0.0.1:1/0"
    found = said(settings, REDLOCK, nodes=[node(1), node(2), away])
    assert not found["error"]
    assert any("Node 3 does not answer" in text for text in found["warning"])
    found = said(settings, REDLOCK, nodes=[node(1), away, away.replace(":1/", ":2/")])
    assert any("1 of 3 nodes answer, 2 are needed" in text for text in found["error"])
    assert CANARY not in str(found)


# ZooKeeper


def zookeeper() -> str:
    server = services.load()["zookeeper"]
    return f"{server['host']}:{server['port']}"


def test_a_session_timeout_that_the_server_does_not_take(settings: Any) -> None:
    found = said(settings, ZOOKEEPER, hosts=zookeeper(), session_timeout=10_000)
    assert any("instead of the session_timeout of 10000 s" in text for text in found["warning"])
    assert any("Only one host is named" in text for text in found["info"])


def test_an_ensemble_without_a_majority(settings: Any) -> None:
    found = said(settings, ZOOKEEPER, hosts=f"{zookeeper()},127.0.0.1:1", session_timeout=2.0)
    assert any("127.0.0.1:1 does not answer" in text for text in found["warning"])
    assert any("1 of 2 servers do not answer" in text for text in found["error"])


# all of them


def test_names_with_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    info = LockInfo(backend="memory", key="k", name="a", details={"collision": "b"})
    monkeypatch.setattr(diagnosis, "held_locks", lambda using: [BackendReport(alias=using, backend="B", locks=(info,))])
    errors = [finding.text for finding in diagnose("memory") if finding.level == "error"]
    assert errors == ["The names 'a' and 'b' have one key: they exclude each other."]


def test_a_server_unlike_all_that_we_know(monkeypatch: pytest.MonkeyPatch) -> None:
    from django_distlock.backends.memory import MemoryBackend

    def strange(self: MemoryBackend) -> list[Finding]:
        raise ZeroDivisionError(CANARY)

    monkeypatch.setattr(MemoryBackend, "diagnose", strange)
    (warning,) = (finding for finding in diagnose("memory") if finding.level == "warning")
    assert warning.text == "The server could not be examined: ZeroDivisionError."


def test_a_doctor_beside_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from django_distlock import advisory_lock

    monkeypatch.setattr(diagnosis, "PATIENCE", 0.05)
    found: list[Finding] = []
    with advisory_lock(diagnosis.DOCTOR, using="memory"):
        other = threading.Thread(target=lambda: found.extend(diagnose("memory")))
        other.start()
        other.join(10)
    (warning,) = (finding for finding in found if finding.level == "warning")
    assert "was busy for 0.05 s" in warning.text


@pytest.mark.parametrize(
    ("setting", "row", "level", "text"),
    [
        (None, "x", "info", "comes from the database"),
        ("x" * 32, "x" * 32, "info", "comes from DISTLOCK_SITE_KEY."),
        ("x" * 32, CANARY, "info", "has another one"),
        ("x" * 32, None, "info", "comes from DISTLOCK_SITE_KEY."),
        (None, None, "error", "There is no site key"),
        (5, "x", "error", "must be a str"),
    ],
)
def test_where_the_site_key_comes_from(
    settings: Any, monkeypatch: pytest.MonkeyPatch, setting: Any, row: str | None, level: str, text: str
) -> None:
    from django_distlock import BackendUnavailable

    def read() -> str:
        if row is None:
            raise BackendUnavailable("There is no site key for django-distlock.")
        return row

    monkeypatch.setattr(diagnosis, "read_row", read)
    settings.DISTLOCK_SITE_KEY = setting
    (finding,) = (finding for finding in diagnose("memory") if not finding.alias)
    assert finding.level == level
    assert text in finding.text
    assert CANARY not in finding.text


def test_a_lock_session_of_its_own_for_redis() -> None:
    """What the doctor opens it closes."""
    with Redis.from_url(url()) as client:
        client.ping()
        before = {each["id"] for each in client.client_list()}
        list(redis_doctor.findings(_redis()))
        assert not {each["id"] for each in client.client_list() if each["cmd"] == "info"} - before


def _redis() -> Any:
    from django_distlock.registry import registry

    return registry.entry("redis").backend
