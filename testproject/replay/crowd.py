"""Client processes that send sign-ups at one barrier while another one logs in again and again.

Runs in spawned processes that never load Django: what they do is HTTP and a clock.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Self
from urllib.parse import urlencode

from .records import Answer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier, Event

HTTP_SECONDS = 60
BARRIER_SECONDS = 30
PHASE_SECONDS = 180
# Between two log-ins: without it a third of all requests would be those that only look on.
VIGIL_PAUSE = 0.05

Form = dict[str, str]


class CrowdError(Exception):
    """A client process died or did not finish in time."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """A client with a CSRF cookie, as a browser or scanner has that fetched the form first."""

    port: int
    csrf: str

    @classmethod
    def arrive(cls, port: int, path: str) -> Self:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HTTP_SECONDS)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            cookie = SimpleCookie(response.headers.get("Set-Cookie", "")).get("csrftoken")
            if response.status != 200 or cookie is None:
                raise CrowdError(f"GET {path} answered {response.status} without a csrftoken cookie.")
            return cls(port, cookie.value)
        finally:
            connection.close()

    def post(self, path: str, form: Form) -> Answer:
        """One POST on a connection of its own, so that any server process may accept it."""
        headers = {
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
            "Cookie": f"csrftoken={self.csrf}",
            "X-CSRFToken": self.csrf,
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HTTP_SECONDS)
        started = time.monotonic()
        try:
            connection.request("POST", path, urlencode(form), headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            return Answer(0, started, time.monotonic() - started, error=repr(error))
        finally:
            connection.close()
        seconds = time.monotonic() - started
        try:
            return Answer(response.status, started, seconds, json.loads(body).get("process"))
        except (ValueError, AttributeError):
            return Answer(response.status, started, seconds, error="not the JSON of this app")


@dataclass(frozen=True, slots=True)
class Burst:
    """What one client process does at the barrier: each of `queues` is sent by a thread, one after the other."""

    port: int
    path: str
    queues: list[list[Form]]

    def send(self, barrier: Barrier) -> list[Answer]:
        visitor = Visitor.arrive(self.port, self.path)

        def send_queue(queue: list[Form]) -> list[Answer]:
            barrier.wait(BARRIER_SECONDS)
            return [visitor.post(self.path, form) for form in queue]

        with ThreadPoolExecutor(len(self.queues)) as pool:
            return [answer for answers in pool.map(send_queue, self.queues) for answer in answers]


@dataclass(frozen=True, slots=True)
class Vigil:
    """Log in again and again, from the barrier until the sign-ups are over, and at least once."""

    port: int
    path: str
    form: Form

    def keep(self, barrier: Barrier, over: Event) -> list[Answer]:
        visitor = Visitor.arrive(self.port, self.path)
        barrier.wait(BARRIER_SECONDS)
        answers = [visitor.post(self.path, self.form)]
        replay = multiprocessing.parent_process()
        # a replay that was killed never says that it is over
        while not over.wait(VIGIL_PAUSE) and (replay is None or replay.is_alive()):
            answers.append(visitor.post(self.path, self.form))
        return answers


def client(pipe: Connection, barrier: Barrier, over: Event) -> None:
    """A client process: does one Burst or Vigil after the other until it is handed None."""
    while (job := pipe.recv()) is not None:
        try:
            pipe.send(job.send(barrier) if isinstance(job, Burst) else job.keep(barrier, over))
        except Exception as error:
            barrier.abort()
            pipe.send(repr(error))


class Crowd:
    """`processes` client processes with `threads` threads each, and one process more that logs in."""

    def __init__(self, *, processes: int = 4, threads: int = 8) -> None:
        self.processes, self.threads = processes, threads
        # Spawned, not forked: a child must not inherit this process's database connections.
        context = multiprocessing.get_context("spawn")
        self._over = context.Event()
        self._barrier = context.Barrier(processes * threads + 1)
        self._members = []
        for _ in range(processes + 1):
            ours, theirs = context.Pipe()
            member = context.Process(target=client, args=(theirs, self._barrier, self._over), daemon=True)
            member.start()
            theirs.close()
            self._members.append((member, ours))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: object, *exc_info: object) -> None:
        for member, pipe in self._members:
            if exc_type is None and member.is_alive():
                pipe.send(None)
            else:
                member.kill()
            member.join()
            pipe.close()

    def queues(self, forms: Sequence[Form]) -> list[list[list[Form]]]:
        """Which process, which of its threads, sends which forms: neighbours are sent by different processes at once.
        The answers come in this order."""
        shares = [forms[number :: self.processes] for number in range(self.processes)]
        return [[list(share[thread :: self.threads]) for thread in range(self.threads)] for share in shares]

    def fire(self, port: int, path: str, forms: Sequence[Form], log_in: Vigil) -> tuple[list[Answer], list[Answer]]:
        """All sign-ups at one barrier; the answers to them, and those to the log-ins meanwhile."""
        self._over.clear()
        *senders, (_, watcher) = self._members
        watcher.send(log_in)
        for (_, pipe), queues in zip(senders, self.queues(forms), strict=True):
            pipe.send(Burst(port, path, queues))
        deadline = time.monotonic() + PHASE_SECONDS
        try:
            sign_ups = [answer for _, pipe in senders for answer in receive(pipe, deadline)]
        finally:
            self._over.set()
        return sign_ups, receive(watcher, deadline)


def receive(pipe: Connection, deadline: float) -> list[Answer]:
    try:
        if not pipe.poll(max(0, deadline - time.monotonic())):
            raise CrowdError(f"A client process did not finish within {PHASE_SECONDS} s.")
        answers = pipe.recv()
    except EOFError:
        raise CrowdError("A client process died.") from None
    if isinstance(answers, str):
        raise CrowdError(f"A client process failed: {answers}")
    return answers
