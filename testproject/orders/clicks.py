"""One request, sent many times at one barrier: as the form of one browser, or as the call of one program."""

from __future__ import annotations

import http.client
import json
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Self
from urllib.parse import urlencode

from testproject.replay.crowd import BARRIER_SECONDS, HTTP_SECONDS, CrowdError

if TYPE_CHECKING:
    from collections.abc import Mapping

FORM_TYPE = "application/x-www-form-urlencoded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One HTTP exchange, sent at `started` (monotonic clock) and answered `seconds` later; `status` 0 means that no
    answer came, and `error` says why."""

    status: int
    started: float
    seconds: float
    location: str = ""
    replayed: bool = False
    error: str = ""

    @property
    def label(self) -> str:
        return f"{self.status} replayed" if self.replayed else str(self.status)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A POST that can be sent any number of times, each on a connection of its own, so that any server process may
    accept it."""

    port: int
    path: str
    body: str
    headers: Mapping[str, str]

    @classmethod
    def form(cls, port: int, path: str, **filled: object) -> Self:
        """The form as a browser has it after it was opened once: its hidden fields and its cookie."""
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HTTP_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            page = response.read().decode()
        finally:
            connection.close()
        cookie = SimpleCookie(response.headers.get("Set-Cookie", "")).get("csrftoken")
        if response.status != 200 or cookie is None:
            raise CrowdError(f"GET {path} answered {response.status} without a csrftoken cookie.")
        headers = {"Content-Type": FORM_TYPE, "Cookie": f"csrftoken={cookie.value}", "Accept": "text/html"}
        return cls(port=port, path=path, body=urlencode(HiddenFields.of(page) | filled), headers=headers)

    @classmethod
    def call(cls, port: int, path: str, **filled: object) -> Self:
        """A call of the API with a key of its own."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": secrets.token_urlsafe(16)}
        return cls(port=port, path=path, body=json.dumps(filled), headers=headers)

    def send(self) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HTTP_SECONDS)
        started = time.monotonic()
        try:
            connection.request("POST", self.path, self.body, dict(self.headers))
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException) as error:
            return Answer(status=0, started=started, seconds=time.monotonic() - started, error=repr(error))
        finally:
            connection.close()
        return Answer(
            status=response.status,
            started=started,
            seconds=time.monotonic() - started,
            location=response.headers.get("Location", ""),
            replayed=response.headers.get("Idempotency-Replayed") == "true",
        )

    def send_at_once(self, times: int) -> list[Answer]:
        barrier = threading.Barrier(times)

        def send() -> Answer:
            barrier.wait(BARRIER_SECONDS)
            return self.send()

        with ThreadPoolExecutor(times) as pool:
            return [sent.result() for sent in [pool.submit(send) for _ in range(times)]]


class HiddenFields(HTMLParser):
    """The hidden fields of the only form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, object] = {}

    @classmethod
    def of(cls, page: str) -> dict[str, object]:
        parser = cls()
        parser.feed(page)
        return parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "input" and given.get("type") == "hidden" and (name := given.get("name")):
            self.found[name] = given.get("value") or ""
