"""``manage.py distlock doctor``: what it finds wrong with real servers, engine by engine."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.db import connections

from django_distlock import UnsupportedOperation, advisory_lock
from django_distlock.backends.leasetable import doctor
from django_distlock.manager.registry import registry
from django_distlock.operations.doctor import diagnose
from tests.engines.own_servers import Galera, Standby, needs_programs, running
from tests.engines.redis.server import Own
from tests.faults.conftest import database_alias
from tests.faults.server import ask, is_mariadb
from tests.operations.test_doctor import CANARY, REDIS, said
from tests.support import services
from tests.support.zones import autumn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")

BACKENDS = "django_distlock.backends"
POSTGRES, MYSQL = f"{BACKENDS}.postgres.AdvisoryBackend", f"{BACKENDS}.mysql.NamedLockBackend"
LEASES, REDLOCK = f"{BACKENDS}.leasetable.LeaseTableBackend", f"{BACKENDS}.redlock.RedlockBackend"
ZOOKEEPER = f"{BACKENDS}.zookeeper.ZooKeeperBackend"


# --- PostgreSQL, MySQL and MariaDB


def test_a_pooler_in_front_of_session_locks(settings: Any) -> None:
    (error,) = said(settings, POSTGRES, database="pgbouncer")["error"]
    assert "session_database" in error
    assert not said(settings, POSTGRES, database="pgbouncer", session_database="postgres")["error"]


@contextmanager
def poor_account(alias: str) -> Iterator[str]:
    """A database alias whose account sees little."""
    name = f"poor_{secrets.token_hex(4)}"
    at = "@'127.0.0.1'" if alias == "mariadb" else ""
    if at:
        ask(alias, f"CREATE USER {name}{at} IDENTIFIED BY '{CANARY}'")
        ask(alias, f"GRANT ALL ON {connections[alias].settings_dict['NAME']}.* TO {name}{at}")
    else:
        ask(alias, f"CREATE ROLE {name} LOGIN PASSWORD '{CANARY}'")
    try:
        with database_alias("poor", alias, USER=name, PASSWORD=CANARY) as poor:
            yield poor
            registry.reset()
    finally:
        ask(alias, f"DROP {'USER' if at else 'ROLE'} {name}{at}")


def test_an_account_that_sees_little(settings: Any) -> None:
    with poor_account("postgres") as poor:
        found = said(settings, POSTGRES, database=poor)
    assert not found["error"]
    assert any("GRANT pg_read_all_stats" in text for text in found["info"])
    with poor_account("mariadb") as poor:
        found = said(settings, MYSQL, database=poor, wait_sessions=100_000)
    assert not found["error"]
    warnings = " ".join(found["warning"])
    assert "GRANT PROCESS" in warnings
    assert "takes up to 100001" in warnings
    # the plugin shows a lock to everybody, and says of others no more than their number
    assert ("GRANT SELECT ON performance_schema.*" in warnings) == (not is_mariadb())


@pytest.mark.tier2
@needs_programs
def test_a_standby(settings: Any) -> None:
    """It grants advisory locks as its primary does, and knows nothing of the primary's."""
    with running(Standby, "postgres") as port, database_alias("standby", "postgres", PORT=str(port)) as standby:
        ask("postgres", "SELECT pg_advisory_lock(1)")
        assert ask(standby, "SELECT pg_is_in_recovery(), pg_try_advisory_lock(1)") == [(True, True)]
        ask("postgres", "SELECT pg_advisory_unlock(1)")
        found = said(settings, POSTGRES, database=standby)
        (error,) = found["error"]
        assert "is a standby" in error
        assert "session_database" in error
        assert any("A lock was acquired" in text for text in found["info"])
        found = said(settings, POSTGRES, database="postgres", session_database=standby)
        assert "is a standby" in found["error"][0]
        (error,) = said(settings, LEASES, database=standby)["error"]
        assert "read-only transaction" in error
        registry.close()


@pytest.mark.tier2
@needs_programs
def test_galera(settings: Any) -> None:
    """A node does not share GET_LOCK with its cluster, and so is refused by whoever asks; then the same server as a
    plain one, which is read-only and shows no named locks."""
    name = connections.settings["mariadb"]["USER"]
    with running(Galera, "mariadb") as port, database_alias("galera", "mariadb", PORT=str(port), NAME=name) as galera:
        (error,) = said(settings, MYSQL, database=galera)["error"]
        assert "No lock can be acquired" in error
        assert "Galera" in error
        with pytest.raises(UnsupportedOperation, match=r"Galera.*LeaseTable"):
            advisory_lock("x", using="sick").acquire()
        found = run_checks(tags=["database"], databases=[galera])
        (message,) = (each for each in found if each.id == "distlock.W006")
        assert "Galera" in message.msg

        ask(galera, "SET GLOBAL wsrep_on = OFF")
        ask(galera, "SET GLOBAL read_only = ON")
        registry.close()
        (replica, listing) = said(settings, MYSQL, database=galera)["warning"]
        assert "read-only" in replica
        assert "INSTALL SONAME 'metadata_lock_info'" in listing
        registry.close()


# --- lease table


def test_a_table_that_is_not_there(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["postgres"], "NAME", "postgres")
    (error,) = said(settings, LEASES, database="postgres")["error"]
    assert "does not exist" in error
    assert "migrate --database=postgres" in error
    with database_alias("in_memory", "default", NAME=":memory:") as alias:
        warnings = said(settings, LEASES, database=alias)["warning"]
    assert any("no other process sees them" in warning for warning in warnings), warnings


def test_clocks_that_differ_but_not_by_daylight_saving(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with autumn("mariadb") as clocks:
        clocks.after()
        found = said(settings, LEASES, database="mariadb")
    assert not found["error"]
    assert not found["warning"]
    monkeypatch.setitem(doctor.NOW, "postgresql", f"{doctor.NOW['postgresql']} - 60000000")
    (warning,) = said(settings, LEASES, database="postgres")["warning"]
    assert "s behind this host's" in warning


# --- Redis and Redlock


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
        # locks work on the connections that are open; the doctor comes on one of its own
        server.client.config_set("maxclients", len(server.client.client_list()))
        texts = [finding.text for finding in diagnose("sick") if finding.level == "warning"]
        server.client.config_set("maxclients", 100)
        assert any("did not answer to INFO" in text for text in texts)
        server.client.execute_command("REPLICAOF", "127.0.0.1", "1")
        assert any("is a replica" in text for text in said(settings, REDIS, url=server.url)["error"])
        server.client.execute_command("REPLICAOF", "NO", "ONE")


def node(number: int) -> str:
    server = services.load()[f"redis{number}"]
    return f"redis://:{server['password']}@{server['host']}:{server['port']}/0"


def test_nodes_of_redlock(settings: Any) -> None:
    """Two processes could hold one lock where half of the votes are the same server's."""
    again = node(1).replace("127.0.0.1", "localhost")
    found = said(settings, REDLOCK, nodes=[node(1), again, node(2)])
    assert any("The nodes 1 and 2 are the same server" in text for text in found["error"])
    away = f"redis://:{CANARY}@127.0.0.1:1/0"
    found = said(settings, REDLOCK, nodes=[node(1), node(2), away])
    assert not found["error"]
    assert any("Node 3 does not answer" in text for text in found["warning"])
    found = said(settings, REDLOCK, nodes=[node(1), away, away.replace(":1/", ":2/")])
    assert any("1 of 3 nodes answer, 2 are needed" in text for text in found["error"])
    assert CANARY not in str(found)


# --- ZooKeeper


def test_an_ensemble(settings: Any) -> None:
    server = services.load()["zookeeper"]
    here = f"{server['host']}:{server['port']}"
    found = said(settings, ZOOKEEPER, hosts=here, session_timeout=10_000)
    assert any("instead of the session_timeout of 10000 s" in text for text in found["warning"])
    assert any("Only one host is named" in text for text in found["info"])
    found = said(settings, ZOOKEEPER, hosts=f"{here},127.0.0.1:1", session_timeout=10)
    assert any("127.0.0.1:1 does not answer" in text for text in found["warning"])
    assert any("1 of 2 servers do not answer" in text for text in found["error"])
