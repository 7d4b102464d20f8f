"""What lies between the browsers and the server: a test can watch, delay and lose requests, and add headers to pages.

A middleware, so that it works for every browser in the same way.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPORTS = "/policy-reports/"
PATIENCE = 30.0  # seconds that a request is held back at most


@dataclass
class Wire:
    """One for all requests of the test server."""

    headers: dict[str, str] = field(default_factory=dict)
    head: str = ""  # markup that pages get at the end of their <head>
    seen: list[tuple[str, str]] = field(default_factory=list)  # the user's name and the path
    reports: list[Any] = field(default_factory=list)
    held: int = 0  # requests that are held back now
    _rules: list[tuple[Callable[[HttpRequest], bool], threading.Event | None, bool]] = field(default_factory=list)

    def clear(self) -> None:
        self.headers.clear()
        self.head = ""
        for found in (self.seen, self.reports, self._rules):
            found.clear()

    @contextmanager
    def held_back(self, matches: Callable[[HttpRequest], bool]) -> Iterator[None]:
        """Such requests reach the server at the end of the block."""
        gate = threading.Event()
        with self._rule(matches, gate, lost=False):
            try:
                yield
            finally:
                gate.set()

    @contextmanager
    def lost(self, matches: Callable[[HttpRequest], bool]) -> Iterator[None]:
        """Such requests never reach the server."""
        with self._rule(matches, None, lost=True):
            yield

    @contextmanager
    def answers_lost(self, matches: Callable[[HttpRequest], bool]) -> Iterator[None]:
        """Such requests reach the server, and their answers do not come back."""
        with self._rule(matches, None, lost=False):
            yield

    @contextmanager
    def _rule(self, matches: Callable[[HttpRequest], bool], gate: threading.Event | None, lost: bool) -> Iterator[None]:
        rule = (matches, gate, lost)
        self._rules.append(rule)
        try:
            yield
        finally:
            if rule in self._rules:
                self._rules.remove(rule)

    def answer(self, request: HttpRequest, get_response: Callable[[HttpRequest], HttpResponse]) -> HttpResponse:
        if request.path == REPORTS:
            self.reports.append(json.loads(request.body))
            return HttpResponse(status=204)
        answer_is_lost = False
        for matches, gate, lost in list(self._rules):
            if not matches(request):
                continue
            if lost:
                return HttpResponse(status=504)
            if gate is None:
                answer_is_lost = True
            else:
                self.held += 1
                gate.wait(PATIENCE)
                self.held -= 1
        response = get_response(request)
        self.seen.append((getattr(getattr(request, "user", None), "username", ""), path_of(request)))
        return HttpResponse(status=504) if answer_is_lost else self._dressed(response)

    def _dressed(self, response: HttpResponse) -> HttpResponse:
        for name, value in self.headers.items():
            response[name] = value
        if self.head and b"</head>" in getattr(response, "content", b""):
            response.content = response.content.replace(b"</head>", f"{self.head}</head>".encode(), 1)
            response["Content-Length"] = len(response.content)
        return response

    def until_seen(self, user: str, path: str, patience: float = PATIENCE) -> None:
        end = time.monotonic() + patience
        while (user, path) not in self.seen:
            assert time.monotonic() < end, f"{user} has not asked for {path}"
            time.sleep(0.02)


def path_of(request: HttpRequest) -> str:
    """The path; with what the script of an edit lock asks there, if it is one of its requests."""
    asked = request.headers.get("Distlock-Edit")
    return f"{request.path} {asked}" if asked else request.path


wire = Wire()


def middleware(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Put :data:`wire` in front of everything else."""
    return lambda request: wire.answer(request, get_response)
