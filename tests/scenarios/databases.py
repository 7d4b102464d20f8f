"""Databases of their own for the demo's server processes: made, migrated, dropped."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.paths import ROOT
from tests.support.services import load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMAND_SECONDS = 110
# What differs from replay to replay.
PER_REPLAY = ("DISTLOCK_ATOMIC_REQUESTS", "DISTLOCK_CONN_MAX_AGE")


@contextmanager
def demo_database(engine: str, folder: Path) -> Iterator[dict[str, str]]:
    """A migrated database for the demo on this engine; yields the environment that points to it."""
    name = f"distlock_scenario_{os.getpid()}"
    with scratch_database(engine, name):
        environment = {"DB": engine, "DISTLOCK_DEMO_DB": str(folder / "demo.sqlite3") if engine == "sqlite" else name}
        done = manage("migrate", "--verbosity=0", environment=environment)
        assert done.returncode == 0, done.stderr
        yield environment


@contextmanager
def scratch_database(engine: str, name: str) -> Iterator[None]:
    """An empty database on the private server; SQLite makes its file by itself."""
    if engine == "sqlite":
        yield
        return
    execute = {"postgres": execute_postgres, "mariadb": execute_mariadb}[engine]
    drop = f"DROP DATABASE IF EXISTS {name}"
    execute(drop)
    execute(f"CREATE DATABASE {name}")
    try:
        yield
    finally:
        # Without FORCE: a session that the demo's processes left open must make this fail.
        execute(drop)


def execute_postgres(statement: str) -> None:
    import psycopg

    server = load()["postgres"]
    with psycopg.connect(
        host=server["host"],
        port=server["port"],
        user=server["user"],
        password=server["password"],
        dbname=server["name"],
        autocommit=True,
    ) as connection:
        connection.execute(statement)


def execute_mariadb(statement: str) -> None:
    import MySQLdb

    server = load()["mariadb"]
    connection = MySQLdb.connect(
        host=server["host"], port=int(server["port"]), user=server["user"], password=server["password"]
    )
    try:
        connection.query(statement)
        connection.store_result()
    finally:
        connection.close()


def manage(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the demo's manage.py."""
    return subprocess.run(
        ["nice", sys.executable, ROOT / "testproject" / "manage.py", *arguments],
        env=demo_environment(environment),
        capture_output=True,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )


def demo_environment(environment: dict[str, str]) -> dict[str, str]:
    """This process's environment without the settings that the demo reads, and with these."""
    # fewer rounds of the password hash than in the demo: the work between check and insert, with room for the race
    # 200 sign-ups in line may take long on a busy machine
    environment = {"DISTLOCK_DEMO_HASH_ITERATIONS": "20000", "DISTLOCK_DEMO_TIMEOUT": "60"} | environment
    ours = ("DB", "DJANGO_SETTINGS_MODULE", "DISTLOCK_DEMO_DB", "DISTLOCK_SITE_KEY", *PER_REPLAY)
    return {key: value for key, value in os.environ.items() if key not in ours} | environment
