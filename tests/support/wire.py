"""What lies between the browsers and the server: a test can watch, delay and lose requests, and add headers to pages.

A middleware, so that it works for every browser in the same way.
"""

from __future__ import annotations

import json
import threading
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse

from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Matches = Callable[[HttpRequest], bool]

REPORTS = "/policy-reports/"
LOST, ANSWER_LOST = "lost", "answer lost"
PATIENCE = 30.0  # seconds that a request is held back at most


@dataclass
class Wire:
    """One for all requests of the test server."""

    headers: dict[str, str] = field(default_factory=dict)
    head: str = ""  # markup that pages get at the end of their <head>
    seen: list[tuple[str, str]] = field(default_factory=list)  # the user's name and the path
    reports: list[Any] = field(default_factory=list)
    held: int = 0  # requests that are held back now
    _rules: list[tuple[Matches, object]] = field(default_factory=list)

    def clear(self) -> None:
        self.headers.clear()
        self.head = ""
        for found in (self.seen, self.reports, self._rules):
            found.clear()

    @contextmanager
    def held_back(self, matches: Matches) -> Iterator[None]:
        """Such requests reach the server at the end of the block."""
        gate = threading.Event()
        with self._rule(matches, gate):
            try:
                yield
            finally:
                gate.set()

    def lost(self, matches: Matches) -> AbstractContextManager[None]:
        """Such requests never reach the server."""
        return self._rule(matches, LOST)

    def answers_lost(self, matches: Matches) -> AbstractContextManager[None]:
        """Such requests reach the server, and their answers do not come back."""
        return self._rule(matches, ANSWER_LOST)

    @contextmanager
    def _rule(self, matches: Matches, fate: object) -> Iterator[None]:
        self._rules.append((matches, fate))
        try:
            yield
        finally:
            with suppress(ValueError):  # all were cleared
                self._rules.remove((matches, fate))

    def answer(self, request: HttpRequest, get_response: Callable[[HttpRequest], HttpResponse]) -> HttpResponse:
        if request.path == REPORTS:
            self.reports.append(json.loads(request.body))
            return HttpResponse(status=204)
        fates = [fate for matches, fate in self._rules if matches(request)]
        if LOST in fates:
            return HttpResponse(status=504)
        for fate in fates:
            if isinstance(fate, threading.Event):
                self.held += 1
                fate.wait(PATIENCE)
                self.held -= 1
        response = get_response(request)
        self.seen.append((getattr(getattr(request, "user", None), "username", ""), path_of(request)))
        return HttpResponse(status=504) if ANSWER_LOST in fates else self._dressed(response)

    def _dressed(self, response: HttpResponse) -> HttpResponse:
        for name, value in self.headers.items():
            response[name] = value
        if self.head and b"</head>" in getattr(response, "content", b""):
            response.content = response.content.replace(b"</head>", f"{self.head}</head>".encode(), 1)
            response["Content-Length"] = len(response.content)
        return response

    def until_seen(self, user: str, path: str) -> None:
        eventually(lambda: (user, path) in self.seen, f"{user} has not asked for {path}")


def path_of(request: HttpRequest) -> str:
    """The path; with what the script of an edit lock asks there, if it is one of its requests."""
    asked = request.headers.get("Distlock-Edit")
    return f"{request.path} {asked}" if asked else request.path


wire = Wire()


def middleware(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Put :data:`wire` in front of everything else."""
    return lambda request: wire.answer(request, get_response)
