"""The demo command as a person runs it."""

from __future__ import annotations

import http.client
import re
import shlex
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support.sizes import POLITELY

from .databases import ROOT, demo_environment, manage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from django.test import Client

# Beyond SERVING_SECONDS, by which a slow machine writes its report: what breaks that off ends the whole run.
pytestmark = [pytest.mark.timeout(200), pytest.mark.tier2]
SERVING_SECONDS = 170


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`manage.py demo` on an empty SQLite file, started from another directory."""
    process = subprocess.Popen(
        [*POLITELY, sys.executable, ROOT / "testproject" / "manage.py", "demo", "--identical=80", "--distinct=16"],
        cwd=tmp_path,
        env=demo_environment({"DB": "sqlite", "DISTLOCK_DEMO_DB": str(tmp_path / "demo.sqlite3")}),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # Ends the reading below when the demo hangs.
    deadline = threading.Timer(SERVING_SECONDS, process.kill)
    deadline.start()
    try:
        yield process
    finally:
        deadline.cancel()
        process.kill()
        process.communicate()


@pytest.mark.long
def test_the_demo_replays_and_serves_until_interrupted(demo: subprocess.Popen[str]) -> None:
    output = ""
    for line in demo.stdout:
        output += line
        if "Control-C" in line:
            break
    print(output)
    assert re.search(r"No lock: 80 identical sign-ups made \d+ accounts, \d+ too many", output)
    for way in ("Table lock", "Row lock", "Advisory lock", "Advisory lock per address"):
        assert f"{way}: 80 identical sign-ups made 1 account." in output
    assert "user demo, password" in output
    address = re.search(r"^Demo: +(\S+)$", output, re.MULTILINE).group(1)
    assert "The latest replay" in get(address, "/")
    for scene in ("/wallet/", "/inventory/", "/orders/", "/scheduler/"):
        assert "Figures of the latest replay</caption>" in get(address, scene), scene
    assert "Log in" in get(address, "/admin/login/")
    assert "color-scheme" in get(address, "/static/registration/demo.css")
    demo.send_signal(signal.SIGINT)
    assert demo.wait(30) == 0


def get(address: str, path: str) -> str:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read().decode()
    finally:
        connection.close()
    assert response.status == 200, body
    return body


@pytest.mark.parametrize(
    ("environment", "arguments", "message"),
    [
        ({"DB": "oracle"}, ["check"], "use sqlite, postgres or mariadb"),
        ({"DB": "postgres", "DISTLOCK_SERVICES": "/nonexistent/state.json"}, ["check"], "make services"),
        ({}, ["replay", "--ways=advisory,queue"], "unknown way queue; choose from none, table, row, advisory"),
        ({}, ["replay"], "testproject/manage.py migrate`"),
    ],
)
def test_bad_input_names_the_cure(
    tmp_path: Path, environment: dict[str, str], arguments: list[str], message: str
) -> None:
    done = manage(*arguments, environment={"DISTLOCK_DEMO_DB": str(tmp_path / "demo.sqlite3")} | environment)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.django_db
def test_the_hint_on_an_empty_page_works_as_it_is_printed(client: Client, tmp_path: Path) -> None:
    """It names the interpreter of the virtual environment: another one has no Django."""
    hint = re.search(r"<code>(.+? replay_wallet)</code>", client.get("/wallet/").text).group(1)
    environment = demo_environment({"DB": "sqlite", "DISTLOCK_DEMO_DB": str(tmp_path / "demo.sqlite3")})
    done = subprocess.run(shlex.split(f"{hint} --help"), cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--pairs" in done.stdout
