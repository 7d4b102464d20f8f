"""Databases of their own for the demo's server processes: made, migrated, dropped."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from tests.support.paths import ROOT
from tests.support.services import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# What the demo reads.
OURS = {"DB", "DJANGO_SETTINGS_MODULE", "DISTLOCK_DEMO_DB", "DISTLOCK_SITE_KEY"}
OURS |= {"DISTLOCK_ATOMIC_REQUESTS", "DISTLOCK_CONN_MAX_AGE"}


@contextmanager
def demo_database(engine: str, folder: Path) -> Iterator[dict[str, str]]:
    """A migrated database for the demo on this engine; yields the environment that points to it."""
    name = f"distlock_scenario_{os.getpid()}"
    with scratch_database(engine, name):
        environment = {"DB": engine, "DISTLOCK_DEMO_DB": str(folder / "demo.sqlite3") if engine == "sqlite" else name}
        done = manage("migrate", "--run-syncdb", "--verbosity=0", environment=environment)
        assert done.returncode == 0, done.stderr
        yield environment


@contextmanager
def scratch_database(engine: str, name: str) -> Iterator[None]:
    """An empty database on the private server; SQLite makes its file by itself."""
    statements = [] if engine == "sqlite" else [f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}"]
    for statement in statements:
        execute(engine, statement)
    try:
        yield
    finally:
        # without FORCE: a session that the demo's processes left open must make this fail
        for statement in statements[:1]:
            execute(engine, statement)


def execute(engine: str, statement: str) -> None:
    server = load()[engine]
    account = {key: server[key] for key in ("host", "user", "password")} | {"port": int(server["port"])}
    if engine == "postgres":
        import psycopg

        with psycopg.connect(**account, dbname=server["name"], autocommit=True) as connection:
            connection.execute(statement)
    else:
        import MySQLdb

        with closing(MySQLdb.connect(**account)) as connection:
            connection.cursor().execute(statement)


def manage(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the demo's manage.py."""
    return subprocess.run(
        [sys.executable, ROOT / "testproject" / "manage.py", *arguments],
        env=demo_environment(environment),
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def demo_environment(environment: dict[str, str]) -> dict[str, str]:
    """This process's environment without the settings that the demo reads, and with these."""
    # fewer rounds of the password hash than in the demo: the work between check and insert, with room for the race
    # 200 sign-ups in line may take long on a busy machine
    environment = {"DISTLOCK_DEMO_HASH_ITERATIONS": "20000", "DISTLOCK_DEMO_TIMEOUT": "60"} | environment
    return {key: value for key, value in os.environ.items() if key not in OURS} | environment
