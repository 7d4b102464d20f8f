"""``manage.py distlock doctor``: what it finds wrong with servers, engine by engine."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from redis import Redis

from django_distlock import advisory_lock
from django_distlock.backends.leasetable import doctor
from django_distlock.backends.redis import doctor as redis_doctor
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.engines.redis.server import Own, url
from tests.faults.proxy import Proxy
from tests.faults.server import ask, is_mariadb
from tests.operations.test_canary import alias_for
from tests.operations.test_doctor import CANARY, REDIS, said
from tests.support import services
from tests.support.timing import within
from tests.support.zones import autumn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")

BACKENDS = "django_distlock.backends"
POSTGRES, MYSQL = f"{BACKENDS}.postgres.AdvisoryBackend", f"{BACKENDS}.mysql.NamedLockBackend"
LEASES, REDLOCK = f"{BACKENDS}.leasetable.LeaseTableBackend", f"{BACKENDS}.redlock.RedlockBackend"
ZOOKEEPER = f"{BACKENDS}.zookeeper.ZooKeeperBackend"


# PostgreSQL


def test_a_pooler_in_front_of_session_locks(settings: Any) -> None:
    (error,) = said(settings, POSTGRES, database="pgbouncer")["error"]
    assert "session_database" in error
    assert not said(settings, POSTGRES, database="pgbouncer", session_database="postgres")["error"]


@contextmanager
def role(alias: str) -> Iterator[str]:
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
        yield name
    finally:
        settings["USER"], settings["PASSWORD"] = before
        connection.settings_dict["USER"], connection.settings_dict["PASSWORD"] = before
        from django_distlock.manager.registry import registry

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
    # the plugin shows a lock to everybody, and says of others no more than their number
    assert ("GRANT SELECT ON performance_schema.*" in warnings) == (not is_mariadb())


# lease table


def test_a_table_that_is_not_there(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["postgres"], "NAME", "postgres")
    (error,) = said(settings, LEASES, database="postgres")["error"]
    assert "does not exist" in error
    assert "migrate --database=postgres" in error


def test_clocks_that_differ(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(doctor.NOW, "postgresql", f"{doctor.NOW['postgresql']} - 60000000")
    (warning,) = said(settings, LEASES, database="postgres")["warning"]
    assert "s behind this host's" in warning
    (finding,) = (f for f in redis_doctor.of_server(redis_doctor.RedisFacts(_WELL, 60.0)) if f.level == "warning")
    assert "60.0 s ahead of this host's" in finding.text
    (finding,) = (f for f in redis_doctor.of_server(redis_doctor.RedisFacts(_WELL, -3600.0)) if f.level == "warning")
    assert "one that is set back ends those of dead holders as much too late" in finding.text


def test_daylight_saving_is_no_difference_of_clocks(settings: Any) -> None:
    with autumn("mariadb") as clocks:
        clocks.after()
        found = said(settings, LEASES, database="mariadb")
    assert not found["error"]
    assert not found["warning"]


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
    facts = redis_doctor.RedisFacts({**_WELL, "connected_slaves": "1"}, 0.0)
    monkeypatch.setattr(redis_doctor, "facts", lambda target: facts)
    found = said(settings, REDIS, url=url())["warning"]
    assert len(found) == 2
    assert all("fail-over" in warning for warning in found)
    monkeypatch.setattr(redis_doctor, "facts", lambda target: redis_doctor.RedisFacts({}, 0.0))
    assert any("may not call INFO" in text for text in said(settings, REDIS, url=url())["info"])


def test_a_redis_that_takes_no_more_clients(settings: Any, tmp_path: Path) -> None:
    """Locks work, on the connections that are open; the doctor comes on one of its own."""
    with Own(tmp_path) as server:
        assert not said(settings, REDIS, url=server.url)["warning"]
        server.client.config_set("maxclients", len(server.client.client_list()))
        found = [finding for finding in diagnose("sick") if finding.level != "info"]
        server.client.config_set("maxclients", 100)
    ((level, text),) = ((finding.level, finding.text) for finding in found)
    assert level == "warning"
    assert "did not answer to INFO" in text


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


def test_servers_that_want_tls_are_not_asked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = registry.entry("zookeeper").backend
    list(backend.inspect())  # a session as it is configured
    monkeypatch.setitem(backend._settings.kazoo, "use_ssl", True)
    texts = [finding.text for finding in backend.diagnose()]
    assert texts[-1] == "The servers are not asked one by one, because of TLS."
    assert not any(zookeeper() in text for text in texts)


def test_a_lock_session_of_its_own_for_redis() -> None:
    """What the doctor opens it closes."""
    with Redis.from_url(url()) as client:
        client.ping()
        before = {each["id"] for each in client.client_list()}
        list(redis_doctor.findings(_redis().target))
        assert not {each["id"] for each in client.client_list() if each["cmd"] == "info"} - before


def _redis() -> Any:
    from django_distlock.manager.registry import registry

    return registry.entry("redis").backend


@pytest.mark.tier2
def test_a_hung_server_of_a_lease_table_does_not_hold_up_the_doctor(databases: None, settings: Any) -> None:
    server = services.load()["postgres"]
    with (
        Proxy(server["host"], server["port"]) as proxy,
        alias_for("leasetable_postgres", server["password"], proxy.port) as entry,
    ):
        settings.DISTLOCK = {"canary": entry}
        advisory_lock("x", using="canary", timeout=5).acquire().release()
        proxy.blackhole()
        began = time.monotonic()
        found = diagnose("canary")
        took = time.monotonic() - began
        proxy.cut()
        registry.close()
    assert any("does not answer within" in finding.text for finding in found)
    within(took, 12.0, what="the doctor at a hung server")
