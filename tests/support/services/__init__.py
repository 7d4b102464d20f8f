"""Private servers for the tests, the demo and the benchmarks: PostgreSQL, pgbouncer in front of it, MariaDB, five Redis
and ZooKeeper.

    python -m tests.support.services up | down | status | run COMMAND... | compose [mariadb | mysql]

They listen on free loopback ports, share one random password and keep their data outside the repository.
DISTLOCK_SERVERS names some of them (postgres,redis1) where not all are needed.
`.services/state.json` (or the path in DISTLOCK_SERVICES) tells clients how to connect:
{"postgres": {"host", "port", "user", "password", "name"}, "pgbouncer": {...}, "mariadb": {...}}.
The file of process ids beside it says that the servers are ours; where it is absent they are a CI job's or compose's,
and are used as they are.  Standard library only, because it runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import time
from pathlib import Path
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

from tests.support.services.compose import CONTAINER_VERBS, containers_down, control_container
from tests.support.services.engines import ENGINES, chosen
from tests.support.services.files import exclusive, processes_path, read_json, state_path, write_json
from tests.support.services.process import (
    POLL_SECONDS,
    ServicesError,
    end_process,
    free_port,
    port_is_free,
    private_directory,
    process_tree,
    signal_all,
    start_detached,
    start_time,
    wait_until,
)

if TYPE_CHECKING:
    from tests.support.services.engine import Engine, Server


def load() -> dict[str, Server]:
    """How to connect to each server.

    Raises ServicesError if none were started, or if one has died since.
    """
    state = read_json(state_path())
    if not state:
        raise ServicesError(f"no servers are running ({state_path()} is absent): run `make services`")
    if dead := [name for name in state if not is_running(name)]:
        raise ServicesError(f"not running any more: {', '.join(dead)}; `make services` starts them again")
    return state


def is_running(name: str) -> bool:
    """Whether the server's process lives; for servers that are not ours, whether its port accepts."""
    if not is_external():
        return _live_pid(name) is not None
    server = read_json(state_path())[name]
    try:
        socket.create_connection((server["host"], server["port"]), timeout=5).close()
    except OSError:
        return False
    return True


def is_external() -> bool:
    """Whether the state file was written by somebody else, so that nothing here may start or stop what it names."""
    return state_path().exists() and not processes_path().exists()


def up(*, keep: bool = True) -> dict[str, Server]:
    """Start what is not running; servers that answer are left as they are.

    `keep`: a `run` that ends later is not to stop them.
    """
    with exclusive():
        if is_external():
            return load()
        missing = {program: package for engine in chosen().values() for program, package in engine.missing().items()}
        if missing:
            names = ", ".join(f"{program} (Debian package {package})" for program, package in missing.items())
            raise ServicesError(f"not installed: {names}; run `make services`")
        processes = read_json(processes_path()) or {"home": str(_new_home()), "servers": {}}
        processes["keep"] = keep or processes.get("keep", False)
        write_json(processes_path(), processes)
        state = _addresses(read_json(state_path()))
        write_json(state_path(), state)
        launched = [_launch(name, state) for name in chosen()]
        for engine in launched:
            _answer(engine)
        return state


def down() -> None:
    """Stop every private server by its recorded process and remove its data."""
    with exclusive():
        if is_external():
            if containers_down(read_json(state_path())):
                state_path().unlink()
            return
        processes = read_json(processes_path())
        for name in reversed(ENGINES):
            pid = _live_pid(name)
            if pid is not None:
                end_process(pid, ENGINES[name].abort_signal)
        if processes:
            shutil.rmtree(processes["home"], ignore_errors=True)
        state_path().unlink(missing_ok=True)
        processes_path().unlink(missing_ok=True)


def start(name: str) -> None:
    """Start one server that was stopped or killed, on its port and with its data; returns when it answers."""
    if not _done_by_container(name, "start"):
        with exclusive():
            _answer(_launch(name, read_json(state_path())))


def stop(name: str) -> None:
    """Stop one server in order, as an operator would; its data stays."""
    if not _done_by_container(name, "stop"):
        with exclusive():
            pid = _live_pid(name)
            if pid is not None:
                end_process(pid, ENGINES[name].stop_signal)


def restart(name: str) -> None:
    stop(name)
    start(name)


def signal(name: str, number: int) -> None:
    """Send a signal to every process of one server.

    SIGSTOP makes a server whose kernel acknowledges and which never answers, SIGCONT lets it go on, SIGKILL is a crash.
    """
    if _done_by_container(name, CONTAINER_VERBS.get(number, f"kill --signal {number}")):
        return
    pid = _live_pid(name)
    if pid is None:
        raise ServicesError(f"{name} is not running")
    tree = process_tree(pid)
    signal_all(tree, number)
    if number == SIGKILL and not wait_until(lambda: all(start_time(member) is None for member in tree), 10):
        raise ServicesError(f"{name} is still there 10 s after SIGKILL")


def status() -> list[tuple[str, str, str]]:
    """(name, address, version or what is wrong) of every server."""
    state = read_json(state_path())
    rows = []
    for name, server in state.items():
        if not is_running(name):
            condition = "dead"
        elif is_external():
            condition = "accepts connections"
        else:
            try:
                condition = f"{_engine(name, state).version()}, pid {_live_pid(name)}"
            except ServicesError as error:
                condition = f"does not answer: {error}"
        rows.append((name, f"{server['host']}:{server['port']}", condition))
    return rows


def _new_home() -> Path:
    """An empty directory for the data of all servers. A clone that was removed while its servers were up leaves data
    there, and nobody knows the passwords any more."""
    home = private_directory(f"distlock-{hashlib.sha256(str(state_path()).encode()).hexdigest()[:12]}")
    for left in home.iterdir():
        shutil.rmtree(left, ignore_errors=True)
    return home


def _addresses(state: dict[str, Server]) -> dict[str, Server]:
    """The entry of every engine: what it had, unless it is down and its port was taken meanwhile."""
    password = next((server["password"] for server in state.values()), None) or secrets.token_urlsafe(24)
    for name in chosen():
        port = state[name]["port"] if name in state else None
        if port is None or (_live_pid(name) is None and not port_is_free(port)):
            port = free_port()
        state[name] = {"host": "127.0.0.1", "port": port, "user": "distlock", "password": password, "name": "distlock"}
    return state


def _engine(name: str, state: dict[str, Server]) -> Engine:
    return ENGINES[name](name, Path(read_json(processes_path())["home"]) / name, state)


def _launch(name: str, state: dict[str, Server]) -> Engine | None:
    """Start one server, making its data directory if need be; the server that shall answer, None if it does already."""
    engine = _engine(name, state)
    pid = _live_pid(name)
    if pid is not None:
        try:
            engine.version()
        except ServicesError:
            end_process(pid, SIGKILL)
        else:
            return None
    if not engine.directory.joinpath("created").exists():  # absent also if making it was interrupted half-way
        shutil.rmtree(engine.directory, ignore_errors=True)
        engine.directory.mkdir(mode=0o700, parents=True)
        if engine.account:
            os.chown(engine.directory, engine.account.pw_uid, engine.account.pw_gid)
        engine.create()
        engine.directory.joinpath("created").touch()
    engine.configure()
    wait_until(lambda: port_is_free(engine.server["port"]), 5)  # the threads of one that was killed end after it
    pid = start_detached(engine.command(), engine.account, engine.directory, engine.log)
    processes = read_json(processes_path())
    processes["servers"][name] = {"pid": pid, "started": start_time(pid)}
    write_json(processes_path(), processes)
    return engine


def _answer(engine: Engine | None) -> None:
    """Wait until a server that was started answers, and have it prepared."""
    if engine is None:
        return
    deadline = time.monotonic() + engine.ready_within
    while True:
        try:
            engine.version()
        except ServicesError as error:
            ended = _live_pid(engine.name) is None
            if ended or time.monotonic() > deadline:
                why = "ended while it started" if ended else f"gave no answer in {engine.ready_within:g} s ({error})"
                log = engine.log.read_text(errors="replace").splitlines()[-15:]
                raise ServicesError("\n".join([f"{engine.name} {why}; the end of {engine.log}:", *log])) from None
            time.sleep(POLL_SECONDS)
        else:
            break
    engine.prepare()


def _live_pid(name: str) -> int | None:
    """The server's process id, if that process is still the one that was started."""
    record: dict[str, Any] | None = read_json(processes_path()).get("servers", {}).get(name)
    if record is None or record["started"] is None or start_time(record["pid"]) != record["started"]:
        return None
    return record["pid"]


def _done_by_container(name: str, verb: str) -> bool:
    """Whether the server is a container and did `verb`; an error if it is neither that nor a process of ours."""
    server = read_json(state_path()).get(name)
    if server is None:
        raise ServicesError(f"no server named {name!r} in {state_path()}")
    if "container" in server:
        control_container(server, verb)
        return True
    if is_external():
        raise ServicesError(f"cannot {verb} {name}: {state_path()} names neither a process nor a container for it")
    return False
