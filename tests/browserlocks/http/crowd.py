"""Many browsers in one process, each with its user: what distlock.js does over HTTP, without a browser."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import secrets
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import connections
from django.utils import timezone

from django_distlock.models import BrowserLockRow, BrowserTicket
from tests.browserlocks.http.people import LEASES, new

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PREFIX = "crowd-"
TOKEN = "x" * 32  # of the CSRF check: cookie and header
UNREACHABLE = 0


class CountingMiddleware:
    """Counts the requests of all processes in a file: each adds a byte."""

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        name = os.environ.get("DISTLOCK_TEST_COUNT")
        self.file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if name else None

    def __call__(self, request: Any) -> Any:
        if self.file is not None:
            os.write(self.file, b".")
        return self.get_response(request)


def counted(file: Path) -> int:
    return file.stat().st_size


def make_users(alias: str, count: int) -> list[dict[str, str]]:
    """Users with sessions, as cookies."""
    User.objects.using(alias).bulk_create(
        User(username=f"{PREFIX}{number}", password="!", first_name=f"User {number}") for number in range(count)
    )
    users = User.objects.using(alias).filter(username__startswith=PREFIX).order_by("pk")
    return [{"sessionid": _session(alias, user), "csrftoken": TOKEN} for user in users]


def _session(alias: str, user: User) -> str:
    key = secrets.token_hex(16)
    data = {
        "_auth_user_id": str(user.pk),
        "_auth_user_backend": "django.contrib.auth.backends.ModelBackend",
        "_auth_user_hash": user.get_session_auth_hash(),
    }
    expiry = timezone.now() + timedelta(days=1)
    Session.objects.using(alias).create(session_key=key, session_data=SessionStore().encode(data), expire_date=expiry)
    return key


def remove_users(alias: str) -> None:
    for model in (Session, User):
        model.objects.using(alias).all().delete()
    for table in (BrowserLockRow, BrowserTicket):
        table.rows.using(alias).all().delete()
    connections[alias].close()


@dataclass
class Browser:
    """A user with one tab."""

    port: int
    cookies: dict[str, str]
    grants: dict[str, str] = field(default_factory=dict)

    @property
    def cookie(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def send(self, method: str, path: str, body: Any = None, timeout: float = 30) -> tuple[int, Any]:
        """Status and JSON; UNREACHABLE if there was no answer, or none of this site."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        headers = {"Cookie": self.cookie, "X-CSRFToken": TOKEN, "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
            return response.status, json.loads(text) if text else None
        except (OSError, http.client.HTTPException, ValueError):
            return UNREACHABLE, None
        finally:
            connection.close()

    def grant(self, name: str, query: str = "") -> str:
        if name not in self.grants:
            status, facts = self.send("GET", f"/grant/?name={name}{query}")
            assert status == 200, facts
            self.grants[name] = facts["grant"]
        return self.grants[name]

    def acquire(self, grant: str, lease: str, *, again: bool = False, hidden: bool = False) -> tuple[int, Any]:
        return self.send("POST", LEASES, {"grant": grant, "id": lease, "queue": True, "again": again, "hidden": hidden})

    def release(self, lease: str) -> int:
        return self.send("POST", f"{LEASES}{lease}/release/", {})[0]


@dataclass
class Holding:
    """When one browser believed that it held the lock, by the clock of this process."""

    who: int
    fence: int
    began: float
    ended: float = 0.0
    handed_over: float = 0.0  # seconds since the holder before began its release


class Ledger:
    """The judge: what the browsers believed, written down outside of the server."""

    def __init__(self) -> None:
        self.holdings: list[Holding] = []
        self._lock = threading.Lock()
        self._freed = 0.0

    def granted(self, who: int, fence: int) -> Holding:
        with self._lock:
            now = time.monotonic()
            holding = Holding(who, fence, now, handed_over=now - self._freed if self._freed else 0.0)
            self.holdings.append(holding)
            return holding

    def ends(self, holding: Holding, valid_until: float) -> None:
        """Before the release is sent. A lease that has run out ended earlier."""
        with self._lock:
            self._freed = time.monotonic()
            holding.ended = min(self._freed, valid_until)

    def overlaps(self) -> list[tuple[Holding, Holding]]:
        """Pairs that believed at the same time."""
        ordered = sorted(self.holdings, key=lambda holding: holding.began)
        return [
            (one, other)
            for number, one in enumerate(ordered)
            for other in ordered[number + 1 :]
            if other.began < (one.ended or float("inf"))
        ]

    def shares(self, first: int, last: int) -> list[int]:
        """How often each browser had the lock, among these of all holdings."""
        found: dict[int, int] = {}
        for holding in self.holdings[first:last]:
            found[holding.who] = found.get(holding.who, 0) + 1
        return sorted(found.values())

    def slowest(self, part: float) -> float:
        """The hand-over that this part of all is not slower than."""
        seconds = sorted(holding.handed_over for holding in self.holdings if holding.handed_over)
        return seconds[min(len(seconds) - 1, int(part * len(seconds)))]


def take_turns(
    browser: Browser, who: int, name: str, ledger: Ledger, stop: threading.Event, hold: Callable[[], float]
) -> None:
    """Acquire, hold and release again and again, as distlock.js does on WSGI."""
    grant = browser.grant(name)
    while not stop.is_set():
        lease, again = new(), False
        while not stop.is_set():
            sent = time.monotonic()
            status, facts = browser.acquire(grant, lease, again=again)
            if status == 201:
                holding = ledger.granted(who, facts["fence"])
                stop.wait(hold())
                ledger.ends(holding, sent + facts["expires_in"])
                _give_back(browser, lease)
                break
            assert status in (409, 503, UNREACHABLE), (status, facts)
            again = status == 409
            pause = facts["retry_after"] if status == 409 else 0.2
            stop.wait(pause * random.uniform(0.8, 1.2))
        else:
            _give_back(browser, lease)


def _give_back(browser: Browser, lease: str) -> None:
    """Until the server has heard it."""
    for _ in range(50):
        if browser.release(lease) == 204:
            return
        with contextlib.suppress(OSError):
            time.sleep(0.1)
