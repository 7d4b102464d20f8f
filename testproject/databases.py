"""DATABASES and DISTLOCK of the demo and of the test suite, from the environment and the private servers' state file.

DB                     sqlite (default), postgres or mariadb: what DATABASES["default"] is
DISTLOCK_SERVICES      path of the state file that tests/support/services writes (default: .services/state.json)
DISTLOCK_DEMO_DB       the SQLite file, or the name of the database on the server
DISTLOCK_DEMO_TIMEOUT  seconds that the lock alias "default" waits, instead of the usual ones
DISTLOCK_TEST_SUFFIX   appended to the names of test databases, so that two test runs can share one machine
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

PROJECT = Path(__file__).resolve().parent
# Long enough for a queue of writers behind SQLite's single write lock, shorter than the replay's HTTP timeout.
SQLITE_BUSY_SECONDS = 30
ENGINES = {"postgres": "django.db.backends.postgresql", "mariadb": "django.db.backends.mysql"}


def services() -> dict[str, dict[str, Any]]:
    """The private servers by name, or an empty mapping when none were started."""
    path = Path(os.environ.get("DISTLOCK_SERVICES") or PROJECT.parent / ".services" / "state.json")
    try:
        state: dict[str, dict[str, Any]] = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ImproperlyConfigured(f"{path} is not JSON ({error}); stop and start the servers again.") from error
    return state


def sqlite_database() -> dict[str, Any]:
    path = Path(os.environ.get("DISTLOCK_DEMO_DB") or PROJECT / "var" / "demo.sqlite3")
    path.parent.mkdir(parents=True, exist_ok=True)
    suffix = os.environ.get("DISTLOCK_TEST_SUFFIX", "")
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            "timeout": SQLITE_BUSY_SECONDS,
            # A deferred transaction that reads first and writes later is refused at once when somebody else has
            # written in between (SQLITE_BUSY_SNAPSHOT, no busy timeout): https://sqlite.org/isolation.html
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
        # A file, because an in-memory database is out of reach for the other processes of a test.
        "TEST": {"NAME": path.parent / f"test{suffix}.sqlite3"},
    }


def server_database(name: str, server: dict[str, Any]) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "ENGINE": ENGINES["postgres" if name == "pgbouncer" else name],
        "NAME": server["name"],
        "HOST": server["host"],
        "PORT": str(server["port"]),
        "USER": server["user"],
        "PASSWORD": server["password"],
        "TEST": {"NAME": f"test_{server['name']}{os.environ.get('DISTLOCK_TEST_SUFFIX', '')}"},
    }
    if name == "pgbouncer":
        # The same database by another door: created and dropped once, under the alias "postgres".
        settings["TEST"] = {"MIRROR": "postgres"}
        settings["DISABLE_SERVER_SIDE_CURSORS"] = True
    if name == "mariadb":
        settings["OPTIONS"] = {"charset": "utf8mb4"}
        settings["TEST"] |= {"CHARSET": "utf8mb4"}
    return settings


def databases() -> dict[str, dict[str, Any]]:
    """DATABASES: "default" as DB says, and one alias for each private server that is up."""
    aliases = {
        name: server_database(name, server)
        for name, server in services().items()
        if name in DRIVERS and find_spec(DRIVERS[name]) is not None
    }
    choice = os.environ.get("DB") or "sqlite"
    if choice == "sqlite":
        return {"default": sqlite_database(), **aliases}
    if choice not in ENGINES:
        raise ImproperlyConfigured(f"DB={choice!r} is unknown; use sqlite, postgres or mariadb.")
    if choice not in aliases:
        raise ImproperlyConfigured(f"DB={choice} needs a private server and none is running: run `make services`.")
    default = {**aliases[choice], "NAME": os.environ.get("DISTLOCK_DEMO_DB") or aliases[choice]["NAME"]}
    return {"default": default, **aliases}


# A server without its driver is left out: `make demo DB=postgres` installs only what it needs.
DRIVERS = {"postgres": "psycopg", "pgbouncer": "psycopg", "mariadb": "MySQLdb"}

REDLOCK_NODES = tuple(f"redis{number}" for number in range(1, 6))

# Lock aliases that need a server: lock alias -> (database alias, backend).
SERVER_LOCKS = {
    "postgres": ("postgres", "postgres.AdvisoryBackend"),
    "mysql": ("mariadb", "mysql.NamedLockBackend"),
    "leasetable_postgres": ("postgres", "leasetable.LeaseTableBackend"),
    "leasetable_mariadb": ("mariadb", "leasetable.LeaseTableBackend"),
}


def caches() -> dict[str, dict[str, Any]]:
    """CACHES: "default" in this process, and "redis" if that server is up and its driver installed."""
    local = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    server = services().get("redis1")
    if server is None or find_spec("django_redis") is None:
        return local
    address = f"redis://{server['host']}:{server['port']}/0"
    return local | {
        "redis": {
            "BACKEND": "django_redis.cache.RedisCache",
            "LOCATION": address,
            "OPTIONS": {"PASSWORD": server["password"]},
        }
    }


def lock_aliases(configured: dict[str, dict[str, Any]], cached: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """DISTLOCK for these DATABASES and CACHES: "default" names no backend and so follows DATABASES["default"]."""
    local: dict[str, dict[str, Any]] = {
        "default": {"TIMEOUT": float(seconds)} if (seconds := os.environ.get("DISTLOCK_DEMO_TIMEOUT")) else {},
        "memory": {"BACKEND": "django_distlock.backends.memory.MemoryBackend"},
        "leasetable": lock_alias("leasetable.LeaseTableBackend", "default"),
    }
    if "redis" in cached:
        local["redis"] = {"BACKEND": "django_distlock.backends.redis.RedisBackend", "OPTIONS": {"cache": "redis"}}
    of_databases = {
        alias: lock_alias(backend, database)
        for alias, (database, backend) in SERVER_LOCKS.items()
        if database in configured
    }
    return local | zookeeper_alias() | redlock_alias() | of_databases


def zookeeper_alias() -> dict[str, dict[str, Any]]:
    """The lock alias "zookeeper", if that server runs."""
    server = services().get("zookeeper")
    if server is None or find_spec("kazoo") is None:
        return {}
    options = {
        "hosts": f"{server['host']}:{server['port']}",
        "path": f"/distlock{os.environ.get('DISTLOCK_TEST_SUFFIX', '')}",
        # as short as a busy machine allows: the tests wait for its end
        "session_timeout": 2.0,
    }
    return {"zookeeper": {"BACKEND": "django_distlock.backends.zookeeper.ZooKeeperBackend", "OPTIONS": options}}


def redlock_alias() -> dict[str, dict[str, Any]]:
    """The lock alias "redlock", if all its nodes run."""
    servers = services()
    if find_spec("redis") is None or not set(REDLOCK_NODES) <= set(servers):
        return {}
    nodes = [
        f"redis://:{server['password']}@{server['host']}:{server['port']}/0"
        for server in map(servers.get, REDLOCK_NODES)
        if server
    ]
    # a busy machine may keep five processes from a processor for longer than the default of 50 ms for short leases
    options = {"nodes": nodes, "node_timeout": 0.25}
    return {"redlock": {"BACKEND": "django_distlock.backends.redlock.RedlockBackend", "OPTIONS": options}}


def lock_alias(backend: str, database: str) -> dict[str, Any]:
    return {"BACKEND": f"django_distlock.backends.{backend}", "OPTIONS": {"database": database}}
