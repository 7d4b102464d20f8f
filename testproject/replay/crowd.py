"""Clients that send requests at one barrier, while another one sends one of its own again and again."""

from __future__ import annotations

import http.client
import math
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from . import ReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

HTTP_SECONDS = 60
BARRIER_SECONDS = 30
CLIENTS = 32  # at most, at once
# Between two requests of the one that looks on: without it a third of all requests would be its own.
WATCH_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """To a request that was sent at `started` (monotonic). `status` 0 means that none came, and `body` says why."""

    started: float
    seconds: float
    status: int
    body: str
    headers: Mapping[str, str]

    @property
    def fault(self) -> str:
        return str(self.status) if self.status else self.body


@dataclass(frozen=True, slots=True)
class Request:
    """It can be sent any number of times, each on a connection of its own, so that any server process may accept it."""

    port: int
    path: str
    body: str | None = None
    headers: Mapping[str, str] | None = None

    def send(self) -> Answer:
        started = time.monotonic()
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=HTTP_SECONDS)) as connection:
                connection.request("GET" if self.body is None else "POST", self.path, self.body, self.headers or {})
                response = connection.getresponse()
                body = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            return Answer(started, time.monotonic() - started, 0, repr(error), {})
        return Answer(started, time.monotonic() - started, response.status, body, response.headers)


def open_form(port: int, path: str) -> Callable[..., Request]:
    """What a client does that has opened a form: it posts these fields, with the CSRF cookie and the hidden fields."""
    page = Request(port, path).send()
    cookie = SimpleCookie(page.headers.get("Set-Cookie", "")).get("csrftoken")
    if page.status != 200 or cookie is None:
        raise ReplayError(f"GET {path} answered {page.fault} without a csrftoken cookie.")

    def filled(accept: str = "application/json", **fields: object) -> Request:
        headers = {"Accept": accept, "Content-Type": "application/x-www-form-urlencoded"}
        headers["Cookie"] = f"csrftoken={cookie.value}"
        return Request(port, path, urlencode(hidden_fields(page.body) | fields), headers)

    return filled


def hidden_fields(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))


def fire(requests: Sequence[Request], watch: Request | None = None) -> tuple[list[Answer], list[Answer]]:
    """Send all requests at one barrier; the answers to them, and those to `watch`, which one more client sends again
    and again until the others are done."""
    size = min(len(requests), CLIENTS)
    barrier, done = threading.Barrier(size + (watch is not None)), threading.Event()

    def send(number: int) -> list[Answer]:
        barrier.wait(BARRIER_SECONDS)
        return [request.send() for request in requests[number::size]]

    def look_on(request: Request) -> list[Answer]:
        barrier.wait(BARRIER_SECONDS)
        answers = [request.send()]
        while not done.wait(WATCH_PAUSE):
            answers.append(request.send())
        return answers

    with ThreadPoolExecutor(size + 1) as pool:
        watched = pool.submit(look_on, watch) if watch else None
        try:
            answers = [answer for share in pool.map(send, range(size)) for answer in share]
        finally:
            done.set()
        return answers, watched.result() if watched else []


def summary(answers: Sequence[Answer], good: Collection[Answer]) -> dict[str, Any]:
    """What a table says of answers of which some are `good`: how often came which status, and what else came."""
    replayed = [answer for answer in answers if answer.headers.get("Idempotency-Replayed") == "true"]
    labels = Counter(f"{answer.fault}{' replayed' * (answer in replayed)}" for answer in answers)
    wrong = [answer for answer in answers if answer not in good]
    ended = max(answer.started + answer.seconds for answer in answers)
    return {
        "requests": len(answers),
        "answers": ", ".join(f"{number} x {label}" for label, number in sorted(labels.items())),
        "replayed": len(replayed),
        "wrong": len(wrong),
        "errors": sorted({answer.fault for answer in wrong}),
        "seconds": round(ended - min(answer.started for answer in answers), 3),
    }


def milliseconds(answers: Sequence[Answer], share: float = 0.5) -> float | None:
    """The smallest time that at least `share` of the answers did not exceed: the median, or another percentile."""
    ordered = sorted(answer.seconds for answer in answers)
    return round(1000 * ordered[math.ceil(share * len(ordered)) - 1], 1) if ordered else None
