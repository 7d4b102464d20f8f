"""The private servers themselves: a suite that runs on them must be able to trust what they say of their own state."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support import services
from tests.support.services.compose import COMPOSE_FILE, PORTS
from tests.support.services.databases import POSTGRES_SETTINGS
from tests.support.services.engines import ENGINES
from tests.support.services.files import ROOT, processes_path, read_json
from tests.support.services.process import ServicesError, free_port, signal_all, start_time

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the servers of this test alone would be written down; none is started yet."""
    monkeypatch.setenv("DISTLOCK_SERVICES", str(tmp_path / "state.json"))
    yield tmp_path / "state.json"
    services.down()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that start quickly."""
    monkeypatch.setenv("DISTLOCK_SERVERS", "postgres,pgbouncer,redis1")


needs_private_servers = pytest.mark.skipif(
    services.is_external(), reason="this run uses servers of somebody else, and has no programs to start its own"
)


def connect(server: services.Server) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(
        host=server["host"], port=server["port"], user=server["user"], password=server["password"],
        dbname=server["name"], connect_timeout=5, autocommit=True,
    )  # fmt: skip


def test_nothing_started_names_the_command(state: Path) -> None:
    with pytest.raises(ServicesError, match=r"no servers are running .* run `make services`"):
        services.load()


def test_corrupt_state_names_the_file(state: Path) -> None:
    state.write_text("{")
    with pytest.raises(ServicesError, match=r"state\.json is not JSON"):
        services.load()
    state.unlink()


def test_servers_of_somebody_else_are_used_and_left_alone(state: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = {"host": "127.0.0.1", "port": listener.getsockname()[1], "user": "u", "password": "p", "name": "n"}
        state.write_text(json.dumps({"postgres": server}))
        assert services.load() == services.up() == {"postgres": server}
        with pytest.raises(ServicesError, match="cannot stop postgres"):
            services.stop("postgres")
        services.down()
        assert state.exists()
    with pytest.raises(ServicesError, match="not running any more: postgres"):
        services.load()


def test_a_recycled_process_id_is_not_ours(state: Path, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        record = {"pid": stranger.pid, "started": (start_time(stranger.pid) or 0) - 1}
        home = tmp_path / "home"
        processes_path().write_text(json.dumps({"home": str(home), "servers": {"postgres": record}}))
        assert not services.is_running("postgres")
        services.down()
        assert stranger.poll() is None
        stranger.kill()


def test_a_process_of_many_threads_has_stopped_when_it_was_told_to() -> None:
    code = """
import hashlib, sys, threading
for _ in range(4):  # a digest of that many bytes does not need Python's lock
    threading.Thread(target=lambda: [hashlib.sha256(bytes(100_000)) for _ in iter(int, 1)], daemon=True).start()
print(flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tasks = Path(f"/proc/{process.pid}/task")
        try:
            for _ in range(20):
                signal_all([process.pid], signal.SIGSTOP)
                states = [stat.read_text().rpartition(") ")[2][0] for stat in tasks.glob("*/stat")]
                assert states == ["T"] * 5
                signal_all([process.pid], signal.SIGCONT)
        finally:
            process.kill()


def test_each_server_has_a_port_of_its_own_also_in_processes_that_start_them_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of the ports is bound yet when the next one is drawn."""
    monkeypatch.setattr("tests.support.services.process._drawn", set())
    drawn = []
    for worker in ("", "gw0", "gw1", "gw2", "gw3"):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", worker)
        drawn += [free_port() for _ in range(100)]
    assert len(set(drawn)) == len(drawn) == 500


def test_a_server_that_does_not_exist(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTLOCK_SERVERS", "redis1,oracle")
    with pytest.raises(ServicesError, match=r"^DISTLOCK_SERVERS names oracle; there are zookeeper, postgres"):
        services.up()


@needs_private_servers
def test_data_of_a_clone_that_was_removed_is_not_served(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTLOCK_SERVERS", "redis1")
    services.up()
    services.stop("redis1")
    left = Path(read_json(processes_path())["home"]) / "redis1" / "left"
    left.touch()
    state.unlink()
    processes_path().unlink()
    services.up()
    assert left.parent.exists()
    assert not left.exists()


@pytest.mark.tier2
@needs_private_servers
def test_life_of_the_servers(state: Path, few: None) -> None:
    found = services.up()
    assert services.load() == found
    assert services.up() == found, "what runs stays as it is"
    with connect(found["pgbouncer"]) as connection:
        assert connection.execute("SELECT count(*) > 0 FROM pg_stat_statements").fetchone() == (True,)

    services.signal("postgres", signal.SIGKILL)
    with pytest.raises(ServicesError, match="not running any more: postgres;"):
        services.load()
    services.start("postgres")
    services.restart("redis1")
    assert services.load() == found, "on the same ports"
    with connect(found["pgbouncer"]) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)

    processes = read_json(processes_path())
    services.down()
    assert [name for name in found if start_time(processes["servers"][name]["pid"]) is not None] == []
    assert not state.exists()
    assert not ROOT.joinpath(processes["home"]).exists()


@pytest.mark.tier2
@needs_private_servers
@pytest.mark.parametrize(("script", "number", "status"), [("exit 7", None, 7), ("echo; sleep 60", signal.SIGTERM, 143)])
def test_run_stops_the_servers_and_returns_the_status(
    state: Path, few: None, script: str, number: int | None, status: int
) -> None:
    command = [sys.executable, "-m", "tests.support.services", "run", "sh", "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as wrapper:
        if number is not None:
            assert wrapper.stdout is not None
            wrapper.stdout.readline()
            assert services.load()
            wrapper.send_signal(number)
        assert wrapper.wait(60) == status
    assert not state.exists()


def test_compose_runs_postgres_with_the_same_settings() -> None:
    ours_alone = {"listen_addresses", "unix_socket_directories", "log_line_prefix"}
    text = COMPOSE_FILE.read_text()
    assert {key for key, value in POSTGRES_SETTINGS.items() if f"-c {key}={value}" not in text} == ours_alone


def test_compose_has_every_server_and_publishes_its_port() -> None:
    assert set(PORTS) == set(ENGINES)
    published = [line for line in COMPOSE_FILE.read_text().splitlines() if "ports:" in line]
    for name, port in PORTS.items():
        assert sum(f"127.0.0.1:{port}:" in line for line in published) == (2 if name == "mariadb" else 1), name
