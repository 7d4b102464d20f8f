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
SUFFIX = os.environ.get("DISTLOCK_TEST_SUFFIX", "")
# A server without its driver is left out: `make demo DB=postgres` installs only what it needs.
DRIVERS = {"postgres": "psycopg", "pgbouncer": "psycopg", "mariadb": "MySQLdb"}
ENGINES = {"postgres": "postgresql", "pgbouncer": "postgresql", "mariadb": "mysql"}
REDLOCK_NODES = tuple(f"redis{number}" for number in range(1, 6))

Settings = dict[str, dict[str, Any]]


def services() -> Settings:
    """The private servers by name, or an empty mapping when none were started."""
    path = Path(os.environ.get("DISTLOCK_SERVICES") or PROJECT.parent / ".services" / "state.json")
    try:
        state: Settings = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ImproperlyConfigured(f"{path} is not JSON ({error}); stop and start the servers again.") from error
    return state


def sqlite_database() -> dict[str, Any]:
    path = Path(os.environ.get("DISTLOCK_DEMO_DB") or PROJECT / "var" / "demo.sqlite3")
    path.parent.mkdir(parents=True, exist_ok=True)
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            # Long enough for a queue of writers behind the single write lock, shorter than the replay's HTTP timeout.
            "timeout": 30,
            # A deferred transaction that reads first and writes later is refused at once when somebody else has
            # written in between (SQLITE_BUSY_SNAPSHOT, no busy timeout): https://sqlite.org/isolation.html
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
        # A file, because an in-memory database is out of reach for the other processes of a test.
        "TEST": {"NAME": path.parent / f"test{SUFFIX}.sqlite3"},
    }


def server_database(name: str, server: dict[str, Any]) -> dict[str, Any]:
    account = {key.upper(): str(server[key]) for key in ("name", "host", "port", "user", "password")}
    settings: dict[str, Any] = {"ENGINE": f"django.db.backends.{ENGINES[name]}", **account}
    settings["TEST"] = {"NAME": f"test_{server['name']}{SUFFIX}"}
    if name == "pgbouncer":
        # The same database by another door: created and dropped once, under the alias "postgres".
        settings |= {"TEST": {"MIRROR": "postgres"}, "DISABLE_SERVER_SIDE_CURSORS": True}
    if name == "mariadb":
        settings["OPTIONS"] = {"charset": "utf8mb4"}
        settings["TEST"]["CHARSET"] = "utf8mb4"
    return settings


def databases() -> Settings:
    """DATABASES: "default" as DB says, and one alias for each private server that is up."""
    servers = {name: server for name, server in services().items() if name in DRIVERS and find_spec(DRIVERS[name])}
    aliases = {name: server_database(name, server) for name, server in servers.items()}
    choice = os.environ.get("DB") or "sqlite"
    if choice == "sqlite":
        return {"default": sqlite_database(), **aliases}
    if choice not in ENGINES:
        raise ImproperlyConfigured(f"DB={choice!r} is unknown; use sqlite, postgres or mariadb.")
    if choice not in aliases:
        raise ImproperlyConfigured(f"DB={choice} needs a private server and none is running: run `make services`.")
    default = {**aliases[choice], "NAME": os.environ.get("DISTLOCK_DEMO_DB") or aliases[choice]["NAME"]}
    return {"default": default, **aliases}


def redis_url(server: dict[str, Any], password: str = "") -> str:
    return f"redis://{password and f':{password}@'}{server['host']}:{server['port']}/0"


def caches() -> Settings:
    """CACHES: "default" in this process, and "redis" if that server is up and its driver installed."""
    found: Settings = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    if (server := services().get("redis1")) and find_spec("django_redis"):
        options = {"PASSWORD": server["password"]}
        cache = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": redis_url(server), "OPTIONS": options}
        found["redis"] = cache
    return found


def lock_aliases(configured: Settings, cached: Settings) -> Settings:
    """DISTLOCK for these DATABASES and CACHES: "default" names no backend and so follows DATABASES["default"]."""
    seconds, servers = os.environ.get("DISTLOCK_DEMO_TIMEOUT"), services()
    found = {
        "default": {"TIMEOUT": float(seconds)} if seconds else {},
        "memory": {"BACKEND": "django_distlock.backends.memory.MemoryBackend"},
        "leasetable": lock_alias("leasetable.LeaseTableBackend", database="default"),
    }
    if "redis" in cached:
        found["redis"] = lock_alias("redis.RedisBackend", cache="redis")
    if (server := servers.get("zookeeper")) and find_spec("kazoo"):
        hosts, path = f"{server['host']}:{server['port']}", f"/distlock{SUFFIX}"
        # a session as short as a busy machine allows: the tests wait for its end
        options = {"hosts": hosts, "path": path, "session_timeout": 2.0}
        found["zookeeper"] = lock_alias("zookeeper.ZooKeeperBackend", **options)
    if set(REDLOCK_NODES) <= set(servers) and find_spec("redis"):
        nodes = [redis_url(servers[name], servers[name]["password"]) for name in REDLOCK_NODES]
        # a busy machine may keep five processes from a processor for longer than the default of 50 ms for short leases
        found["redlock"] = lock_alias("redlock.RedlockBackend", nodes=nodes, node_timeout=0.25)
    if "postgres" in configured:
        found["postgres"] = lock_alias("postgres.AdvisoryBackend", database="postgres")
    if "mariadb" in configured:
        found["mysql"] = lock_alias("mysql.NamedLockBackend", database="mariadb")
    for database in ("postgres", "mariadb"):
        if database in configured:
            found[f"leasetable_{database}"] = lock_alias("leasetable.LeaseTableBackend", database=database)
    return found


def lock_alias(backend: str, **options: Any) -> dict[str, Any]:
    return {"BACKEND": f"django_distlock.backends.{backend}", "OPTIONS": options}
