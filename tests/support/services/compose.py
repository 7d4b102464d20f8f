"""The same servers as containers (compose.yaml): for machines without root or apt, and for the public CI."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

from tests.support.paths import ROOT
from tests.support.services.process import ServicesError

COMPOSE_FILE = ROOT / "compose.yaml"
# as compose.yaml publishes them
PORTS = {"postgres": 25432, "pgbouncer": 26432, "mariadb": 23306, "zookeeper": 22181}
PORTS |= {f"redis{number}": 26378 + number for number in range(1, 6)}

CONTAINER_VERBS = {SIGSTOP: "pause", SIGCONT: "unpause", SIGKILL: "kill"}
"""What is to a container as the signal is to a process tree."""


def containers_up(known: dict[str, Any], database: str) -> dict[str, Any]:
    """Start the containers, wait until they are healthy, and return the content of the state file.

    `database` is "mariadb" or "mysql": which of the two stands under the key "mariadb".
    """
    engine = _container_engine()
    password = next((server["password"] for server in known.values()), None) or secrets.token_urlsafe(24)
    services = {name: database if name == "mariadb" else name for name in PORTS}
    _run(engine, "compose", "up", "--detach", "--wait", *services.values(), password=password)
    for name in ("template1", "distlock"):  # template1: every test database has it from its creation
        statement = "CREATE EXTENSION IF NOT EXISTS pg_stat_statements"
        _run(engine, "compose", "exec", "-T", "postgres", "psql", "-q", "-U", "distlock", "-d", name, "-c", statement)
    return {
        name: {
            "host": "127.0.0.1",
            "port": PORTS[name],
            "user": "root" if name == "mariadb" else "distlock",
            "password": password,
            "name": "distlock",
            "engine": engine,
            "container": _run(engine, "compose", "ps", "--quiet", service),
        }
        for name, service in services.items()
    }


def containers_down(state: dict[str, Any]) -> bool:
    """Remove the containers that `containers_up` made; whether there were any.  Other servers are left alone."""
    engines = {server["engine"] for server in state.values() if "container" in server}
    for engine in engines:
        _run(engine, "compose", "down", "--volumes")
    return bool(engines)


def control_container(server: dict[str, Any], verb: str) -> None:
    """Start, stop, pause, unpause or kill one container; `start` returns when it is healthy."""
    _run(server["engine"], *verb.split(), server["container"])
    if verb == "start":
        _run(server["engine"], "compose", "up", "--detach", "--wait", "--no-recreate", _service_of(server))


def _service_of(server: dict[str, Any]) -> str:
    (inspected,) = json.loads(_run(server["engine"], "inspect", server["container"]))
    return inspected["Config"]["Labels"]["com.docker.compose.service"]


def _container_engine() -> str:
    for engine in ("docker", "podman"):
        if shutil.which(engine) and subprocess.run([engine, "compose", "version"], capture_output=True).returncode == 0:
            return engine
    raise ServicesError("neither `docker compose` nor `podman compose` works here")


def _run(engine: str, *arguments: str, password: str = "") -> str:
    environment = {
        **os.environ,
        "COMPOSE_FILE": str(COMPOSE_FILE),
        "COMPOSE_PROFILES": "mariadb,mysql",  # `up` names its services, all other commands mean whatever runs
        "DISTLOCK_SERVICES_PASSWORD": password or "unused",  # a call that creates nothing insists on one too
    }
    done = subprocess.run([engine, *arguments], env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise ServicesError(f"{engine} {' '.join(arguments)} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()
