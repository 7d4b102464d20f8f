"""Clients that send requests at one barrier, while another one sends one of its own again and again."""

from __future__ import annotations

import http.client
import json
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from . import ReplayError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HTTP_SECONDS = 60
BARRIER_SECONDS = 30
CLIENTS = 50  # at most, at once
# Between two requests of the one that looks on: without it a third of all requests would be its own.
WATCH_PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP exchange, sent at `started` (monotonic clock) and answered `seconds` later by a server process.

    `status` 0 means that no answer came, and `error` says why.
    """

    status: int
    started: float
    seconds: float
    process: int | None = None
    location: str = ""
    replayed: bool = False
    error: str = ""


@dataclass(frozen=True, slots=True)
class Post:
    """A request that can be sent any number of times, each on a connection of its own, so that any server process may
    accept it."""

    port: int
    path: str
    body: str
    headers: Mapping[str, str]

    def send(self) -> Answer:
        started = time.monotonic()
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=HTTP_SECONDS)) as connection:
                connection.request("POST", self.path, self.body, dict(self.headers))
                response = connection.getresponse()
                body = response.read()
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, started, time.monotonic() - started, error=repr(error))
        seconds, process = time.monotonic() - started, None
        with suppress(ValueError, AttributeError):  # a page, or the JSON of something else
            process = json.loads(body).get("process")
        location, replayed = response.headers.get("Location", ""), response.headers.get("Idempotency-Replayed")
        return Answer(response.status, started, seconds, process, location, replayed == "true")


@dataclass(frozen=True, slots=True)
class Visitor:
    """A client that has opened the form at `path`: its CSRF cookie, and the hidden fields of the form."""

    port: int
    path: str
    csrf: str
    hidden: dict[str, str]

    @classmethod
    def arrive(cls, port: int, path: str) -> Self:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=HTTP_SECONDS)) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            page = response.read().decode()
        cookie = SimpleCookie(response.headers.get("Set-Cookie", "")).get("csrftoken")
        if response.status != 200 or cookie is None:
            raise ReplayError(f"GET {path} answered {response.status} without a csrftoken cookie.")
        return cls(port, path, cookie.value, hidden_fields(page))

    def post(self, form: Mapping[str, Any], accept: str = "application/json") -> Post:
        headers = {
            "Accept": accept,
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": f"csrftoken={self.csrf}",
        }
        return Post(self.port, self.path, urlencode(self.hidden | dict(form)), headers)


def hidden_fields(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))


def fire(posts: Sequence[Post], watch: Post | None = None) -> tuple[list[Answer], list[Answer]]:
    """Send all posts at one barrier; the answers to them, and those to `watch`, which one more client sends again and
    again until the others are done."""
    size = min(len(posts), CLIENTS)
    barrier, done = threading.Barrier(size + (watch is not None)), threading.Event()

    def send(number: int) -> list[Answer]:
        barrier.wait(BARRIER_SECONDS)
        return [post.send() for post in posts[number::size]]

    def look_on(post: Post) -> list[Answer]:
        barrier.wait(BARRIER_SECONDS)
        answers = [post.send()]
        while not done.wait(WATCH_PAUSE):
            answers.append(post.send())
        return answers

    with ThreadPoolExecutor(size + 1) as pool:
        watched = pool.submit(look_on, watch) if watch else None
        try:
            answers = [answer for share in pool.map(send, range(size)) for answer in share]
        finally:
            done.set()
        return answers, watched.result() if watched else []


def span(answers: Sequence[Answer]) -> float:
    """Seconds from the first request to the last answer."""
    return max(answer.started + answer.seconds for answer in answers) - min(answer.started for answer in answers)


def times(seconds: Sequence[float]) -> tuple[float | None, float | None]:
    """Their median and 99th percentile, in milliseconds."""
    ordered = sorted(1000 * each for each in seconds)
    return nearest_rank(ordered, 0.50), nearest_rank(ordered, 0.99)


def nearest_rank(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 1) if ordered else None
