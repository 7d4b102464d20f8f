"""``manage.py distlock doctor``: of servers that are well, of sick ones, and of values that none here answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.db import connections

from django_distlock import BackendUnavailable, UnsupportedOperation, advisory_lock, held_locks
from django_distlock.backends.leasetable import doctor as leasetable
from django_distlock.backends.mysql import doctor as mysql
from django_distlock.backends.postgres import doctor as postgres
from django_distlock.backends.redis import doctor as redis
from django_distlock.backends.zookeeper import doctor as zookeeper
from django_distlock.manager.registry import registry
from django_distlock.operations import doctor
from django_distlock.operations.doctor import diagnose
from tests.conftest import eventually
from tests.engines.own_servers import Galera, Standby, needs_programs, running
from tests.engines.redis.server import Own, url
from tests.faults.conftest import BACKENDS, database_alias
from tests.faults.server import ask, is_mariadb
from tests.operations.world import CANARY, DOWN, MEMORY, REDIS, call, poor_account
from tests.support import services
from tests.support.zones import autumn

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")

POSTGRES, MYSQL, LEASES = (BACKENDS[using] for using in ("postgres", "mysql", "leasetable_postgres"))
REDLOCK = "django_distlock.backends.redlock.RedlockBackend"
ZOOKEEPER = "django_distlock.backends.zookeeper.ZooKeeperBackend"


def said(settings: Any, backend: str, **options: Any) -> dict[str, str]:
    """level -> lines of texts with their hints, of one alias."""
    settings.DISTLOCK = {"sick": {"BACKEND": backend, "OPTIONS": options}}
    found = {"error": "", "warning": "", "info": ""}
    for finding in diagnose("sick"):
        if finding.alias:
            assert finding.alias == "sick"
            found[finding.level] += f"{finding.text} {finding.hint}\n"
    return found


def test_servers_that_are_well(using: str) -> None:
    """Every backend: nothing is wrong, and nothing is left behind."""
    status, out, _ = call("doctor", "--using", using)
    assert status == 0, out
    assert "A lock was acquired and released in" in out
    assert out.endswith("0 errors, 0 warnings.\n")
    # the last nodes of Redlock give it back a moment after the release, which waits for most of them
    eventually(lambda: not [i for i in held_locks(using)[0].locks if i.name == doctor.DOCTOR], "it is still held")


def test_json_has_stable_keys(settings: Any) -> None:
    settings.DISTLOCK = {"default": MEMORY}
    status, out, _ = call("doctor", "--json")
    assert status == 0
    assert {tuple(finding) for finding in json.loads(out)["findings"]} == {("level", "text", "hint", "alias")}


def test_an_error_is_the_exit_status(settings: Any) -> None:
    """And no password is in what is said."""
    wrong = {"BACKEND": REDIS, "OPTIONS": {"url": url().replace("redis://:", f"redis://nobody:{CANARY}")}}
    settings.DISTLOCK = {"default": {"BACKEND": "no.such.Thing"}, "down": DOWN, "wrong": wrong}
    status, out, err = call("doctor")
    assert status == 1
    assert all(f"{alias}: error: " in out for alias in settings.DISTLOCK)
    assert not any(secret in out + err for secret in (CANARY, settings.DISTLOCK_SITE_KEY))


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
    def read() -> tuple[str, str]:
        if row is None:
            raise BackendUnavailable("There is no site key for django-distlock.")
        return "", row

    monkeypatch.setattr(doctor, "read_row", read)
    settings.DISTLOCK_SITE_KEY = setting
    found = diagnose("leasetable") if level == "error" else diagnose("memory")
    (finding,) = (finding for finding in found if not finding.alias)
    assert (finding.level, text in finding.text, CANARY in str(found)) == (level, True, False)
    # without a key no lock is tried; what is wrong is said once, and the server is examined all the same
    if level == "error":
        assert [each.alias for each in found if each.level == "error"] == [""]
        assert "processes of this host only" in str(found)


def node(number: int, host: str = "") -> str:
    server = services.load()[f"redis{number}"]
    return f"redis://:{server['password']}@{host or server['host']}:{server['port']}/0"


def test_options_that_real_servers_do_not_bear(settings: Any) -> None:
    """A pooler in front of session locks; nodes that are one server or away; a lonely ZooKeeper."""
    zookeeper_server = services.load()["zookeeper"]
    here = f"{zookeeper_server['host']}:{zookeeper_server['port']}"
    away = [f"redis://:{CANARY}@127.0.0.1:{port}/0" for port in (1, 2)]
    for backend, options, expected in (
        (POSTGRES, {"database": "pgbouncer"}, {"error": "session_database"}),
        (POSTGRES, {"database": "pgbouncer", "session_database": "postgres"}, {"error": ""}),
        # two processes could hold one lock where half of the votes are the same server's
        (REDLOCK, {"nodes": [node(1), node(1, "localhost"), node(2)]}, {"error": "nodes 1 and 2 are the same server"}),
        (REDLOCK, {"nodes": [node(1), node(2), away[0]]}, {"error": "", "warning": "Node 3 does not answer"}),
        (REDLOCK, {"nodes": [node(1), *away]}, {"error": "1 of 3 nodes answer, 2 are needed"}),
        (ZOOKEEPER, {"hosts": here}, {"info": "Only one host is named"}),
        (
            ZOOKEEPER,
            {"hosts": here, "session_timeout": 10_000},
            {"warning": "instead of the session_timeout of 10000"},
        ),
        (ZOOKEEPER, {"hosts": f"{here},127.0.0.1:1"}, {"error": "1 of 2 servers do not answer"}),
    ):
        found = said(settings, backend, **options)
        for level, text in expected.items():
            assert (text in found[level]) if text else not found[level], (options, found)
        assert CANARY not in str(found)


def test_an_account_that_sees_little(settings: Any) -> None:
    with poor_account("postgres") as poor:
        found = said(settings, POSTGRES, database=poor)
    assert (found["error"], "GRANT pg_read_all_stats" in found["info"]) == ("", True)
    with poor_account("mariadb") as poor:
        found = said(settings, MYSQL, database=poor, wait_sessions=100_000)
    assert not found["error"]
    assert all(text in found["warning"] for text in ("GRANT PROCESS", "takes up to 100001"))
    # the plugin shows a lock to everybody, and says of others no more than their number
    assert ("GRANT SELECT ON performance_schema.*" in found["warning"]) == (not is_mariadb())


@pytest.mark.tier2
@needs_programs
def test_a_standby(settings: Any) -> None:
    """It grants advisory locks as its primary does, and knows nothing of the primary's."""
    with running(Standby, "postgres") as port, database_alias("standby", "postgres", PORT=str(port)) as standby:
        ask("postgres", "SELECT pg_advisory_lock(1)")
        assert ask(standby, "SELECT pg_is_in_recovery(), pg_try_advisory_lock(1)") == [(True, True)]
        ask("postgres", "SELECT pg_advisory_unlock(1)")
        found = said(settings, POSTGRES, database=standby)
        assert all(text in found["error"] for text in ("is a standby", "session_database"))
        assert "A lock was acquired" in found["info"]
        assert "is a standby" in said(settings, POSTGRES, database="postgres", session_database=standby)["error"]
        assert "read-only transaction" in said(settings, LEASES, database=standby)["error"]
        registry.close()


@pytest.mark.tier2
@needs_programs
def test_galera(settings: Any) -> None:
    """A node does not share GET_LOCK with its cluster; then the same server, read-only and without its plugin."""
    name = connections.settings["mariadb"]["USER"]
    with running(Galera, "mariadb") as port, database_alias("galera", "mariadb", PORT=str(port), NAME=name) as galera:
        error = said(settings, MYSQL, database=galera)["error"]
        assert all(text in error for text in ("No lock can be acquired", "Galera"))
        with pytest.raises(UnsupportedOperation, match=r"Galera.*LeaseTable"):
            advisory_lock("x", using="sick").acquire()
        checks = run_checks(tags=["database"], databases=[galera])
        assert ["Galera" in each.msg for each in checks if each.id == "distlock.W006"] == [True]

        ask(galera, "SET GLOBAL wsrep_on = OFF")
        ask(galera, "SET GLOBAL read_only = ON")
        registry.close()
        replica, listing = said(settings, MYSQL, database=galera)["warning"].splitlines()
        assert ("read-only" in replica, "INSTALL SONAME 'metadata_lock_info'" in listing) == (True, True)
        registry.close()


def test_a_table_that_is_not_there(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["postgres"], "NAME", "postgres")
    error = said(settings, LEASES, database="postgres")["error"]
    assert all(text in error for text in ("does not exist", "migrate --database=postgres"))
    with database_alias("in_memory", "default", NAME=":memory:") as alias:
        assert "no other process sees them" in said(settings, LEASES, database=alias)["warning"]


def test_clocks_that_differ_but_not_by_daylight_saving(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with autumn("mariadb") as clocks:
        clocks.after()
        found = said(settings, LEASES, database="mariadb")
    assert not found["error"] + found["warning"]
    monkeypatch.setitem(leasetable.NOW, "postgresql", f"{leasetable.NOW['postgresql']} - 60000000")
    assert "s behind this host's" in said(settings, LEASES, database="postgres")["warning"]


def test_a_redis_that_forgets_locks(settings: Any, tmp_path: Path) -> None:
    with Own(tmp_path) as server:
        assert not said(settings, REDIS, url=server.url)["warning"]
        server.client.config_set("maxmemory-policy", "volatile-lru")
        server.client.config_set("appendonly", "no")
        found = said(settings, REDIS, url=server.url)
        assert (found["error"], found["warning"].count("\n")) == ("", 2)
        server.client.config_set("maxmemory", "100mb")
        assert "noeviction" in said(settings, REDIS, url=server.url)["error"]
        server.client.config_set("maxmemory", "0")
        # locks work on the connection that is open; the doctor comes on one of its own
        registry.close()
        advisory_lock("connects", using="sick").acquire().release()
        server.client.config_set("maxclients", len(server.client.client_list()))
        texts = [finding.text for finding in diagnose("sick") if finding.level == "warning"]
        server.client.config_set("maxclients", 100)
        assert any("did not answer to INFO" in text for text in texts)
        server.client.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert "is a replica" in said(settings, REDIS, url=server.url)["error"]
        server.client.execute_command("REPLICAOF", "NO", "ONE")


PG = postgres.PostgresFacts(
    version="15.1", standby="f", tcp="t", keepalive="60", idle="0", connections="97", used="7",
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
