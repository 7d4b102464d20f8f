"""Client processes that send requests at one barrier, while another one sends one of its own again and again.

They never load Django: what they do is HTTP and a clock.
"""

from __future__ import annotations

import http.client
import json
import math
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode

from . import ReplayError
from .processes import Team

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier

HTTP_SECONDS = 60
BARRIER_SECONDS = 30
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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HTTP_SECONDS)
        started = time.monotonic()
        try:
            connection.request("POST", self.path, self.body, dict(self.headers))
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, started, time.monotonic() - started, error=repr(error))
        finally:
            connection.close()
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
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HTTP_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            page = response.read().decode()
        finally:
            connection.close()
        cookie = SimpleCookie(response.headers.get("Set-Cookie", "")).get("csrftoken")
        if response.status != 200 or cookie is None:
            raise ReplayError(f"GET {path} answered {response.status} without a csrftoken cookie.")
        return cls(port, path, cookie.value, HiddenFields.of(page))

    def post(self, form: Mapping[str, Any], accept: str = "application/json") -> Post:
        headers = {
            "Accept": accept,
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": f"csrftoken={self.csrf}",
        }
        return Post(self.port, self.path, urlencode(self.hidden | dict(form)), headers)


class HiddenFields(HTMLParser):
    """The hidden fields of the only form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    @classmethod
    def of(cls, page: str) -> dict[str, str]:
        parser = cls()
        parser.feed(page)
        return parser.found

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "input" and given.get("type") == "hidden" and (name := given.get("name")):
            self.found[name] = given.get("value") or ""


def client(pipe: Connection, barrier: Barrier, job: Post | list[list[Post]]) -> list[Answer]:
    """What one process does from the barrier on: each of many queues is sent by a thread, one request after the other;
    a single request is sent until the replay says that the others are done, and at least once."""
    if isinstance(job, Post):
        barrier.wait(BARRIER_SECONDS)
        answers = [job.send()]
        while not pipe.poll(WATCH_PAUSE):
            answers.append(job.send())
        pipe.recv()
        return answers

    def send(queue: list[Post]) -> list[Answer]:
        barrier.wait(BARRIER_SECONDS)
        return [post.send() for post in queue]

    with ThreadPoolExecutor(len(job)) as pool:
        return [answer for answers in pool.map(send, job) for answer in answers]


class Crowd:
    """`processes` client processes with `threads` threads each, and one process more if somebody looks on."""

    def __init__(self, *, processes: int = 4, threads: int = 8, watched: bool = True) -> None:
        self.processes, self.threads = processes, threads
        barrier = multiprocessing.get_context("spawn").Barrier(processes * threads + watched)
        function = f"{__name__}:client"
        self._senders = Team(function, processes, barrier, loads_django=False)
        self._watcher = Team(function, int(watched), barrier, loads_django=False)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._senders)
            stack.enter_context(self._watcher)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)

    def fire(self, posts: Sequence[Post], watch: Post | None = None) -> tuple[list[Answer], list[Answer]]:
        """All requests at one barrier, neighbours by different processes; the answers to them, and those to `watch`."""
        if watch is not None:
            self._watcher.send(0, watch)
        for number in range(self.processes):
            share = posts[number :: self.processes]
            self._senders.send(number, [list(share[thread :: self.threads]) for thread in range(self.threads)])
        try:
            answers = [answer for number in range(self.processes) for answer in self._senders.receive(number)]
        finally:
            if watch is not None:
                self._watcher.send(0)
        return answers, [] if watch is None else self._watcher.receive(0)


def span(answers: Sequence[Answer]) -> float:
    """Seconds from the first request to the last answer; the monotonic clock is one for all processes of a machine."""
    return max(answer.started + answer.seconds for answer in answers) - min(answer.started for answer in answers)


def times(seconds: Sequence[float]) -> dict[str, float | None]:
    """Their median and 99th percentile, in milliseconds."""
    ordered = sorted(1000 * each for each in seconds)
    return {"p50": nearest_rank(ordered, 0.50), "p99": nearest_rank(ordered, 0.99)}


def nearest_rank(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least `share` of the values do not exceed."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 1) if ordered else None
