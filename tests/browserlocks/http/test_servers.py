"""Four browsers at one lock over HTTP, while processes of the server are killed, and after it was started anew."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psutil
import pytest
from django.db import connections

from testproject.people import PEOPLE
from testproject.replay.server import Server
from tests.browserlocks.http.people import LEASES, new, remove_people
from tests.browserlocks.ledger import Ledger
from tests.conftest import eventually

pytestmark = pytest.mark.tier2
TOKEN = "x" * 32  # of the CSRF check: cookie and header


class Browser:
    """One tab at the board of the demo, which wants its first piece; what distlock.js does, without a browser."""

    def __init__(self, port: int, slug: str) -> None:
        self.port, self.cookies = port, f"csrftoken={TOKEN}"
        _, headers, _ = self.send("POST", f"/be/{slug}/")
        self.cookies = f"{self.cookies}; {re.search('sessionid=[^;]+', headers)[0]}"
        _, _, page = self.send("GET", "/board/")
        self.grant = re.search('data-grant="([^"]+)"', page)[1]

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, str, str]:
        """Status, headers and text; 0 if there was no answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Cookie": self.cookies, "X-CSRFToken": TOKEN, "Content-Type": "application/json"}
        try:
            connection.request(method, path, body and json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, str(response.headers), response.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, "", ""
        finally:
            connection.close()

    def take_turns(self, ledger: Ledger, stop: threading.Event) -> None:
        """Acquire, hold and release again and again."""
        while not stop.is_set():
            lease, again = new(), False
            while not stop.is_set():
                wish = {"grant": self.grant, "id": lease, "queue": True, "again": again, "hidden": False}
                status, _, text = self.send("POST", LEASES, wish)
                if status == 201:
                    ledger.enter("board", lease, json.loads(text)["fence"])
                    stop.wait(random.uniform(0, 0.1))
                    ledger.leave("board", lease)
                    break
                assert status in (409, 503, 502, 0), (status, text)
                again = status == 409
                stop.wait(json.loads(text)["retry_after"] if again else 0.2)
            while self.send("POST", f"{LEASES}{lease}/release/", {})[0] != 204 and not stop.is_set():
                stop.wait(0.1)  # until the server has heard it


def kill_workers(parent: int, done: threading.Event) -> None:
    """kill -9 one process of the server after the other; the server starts new ones."""
    while not done.wait(random.uniform(0.3, 0.8)):
        if workers := psutil.Process(parent).children():
            os.kill(random.choice(workers).pid, signal.SIGKILL)


def test_no_two_hold_the_lock_while_servers_die(databases: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB", "postgres")
    monkeypatch.setenv("DISTLOCK_DEMO_DB", str(connections["postgres"].settings_dict["NAME"]))
    remove_people("postgres")
    ledger, stop, done = Ledger(), threading.Event(), threading.Event()
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor())
        stack.callback(stop.set)
        stack.callback(done.set)
        with Server(workers=3, threads=4) as first:
            browsers = [Browser(first.port, slug) for slug in PEOPLE for _ in range(2)]
            tasks = [pool.submit(browser.take_turns, ledger, stop) for browser in browsers]
            killing = pool.submit(kill_workers, first.process.pid, done)
            eventually(lambda: len(ledger.entered) >= 10, "nothing is granted while processes are killed")
            done.set()
            killing.result()
        served = len(ledger.entered)
        with Server(workers=3, threads=4, port=first.port):
            eventually(lambda: len(ledger.entered) >= served + 10, "nothing is granted after the restart")
            stop.set()
            for task in tasks:
                task.result()
    remove_people("postgres")
    ledger.check()


def test_the_judge_sees_two_at_once() -> None:
    ledger = Ledger()
    for who in ("one", "two"):
        ledger.enter("board", who, 5)
    with pytest.raises(AssertionError):
        ledger.check()
