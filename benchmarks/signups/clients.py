"""Eight clients that sign up at one server: half of the addresses are new, half are posted twice at the same time."""

from __future__ import annotations

import itertools
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlencode

CLIENTS = 8
PATIENCE = 60.0
CSRF = "c" * 32
TAKEN, MADE = 409, 201


@dataclass
class Answers:
    """What came back in one slice; ``counted`` leaves out its lead-in and what was answered after its end."""

    statuses: list[int] = field(default_factory=list)
    counted: int = 0


class Crowd:
    """The clients of one server. They take turns at one sequence of addresses, so that twins are posted at once."""

    def __init__(self, port: int, slug: str, run: str) -> None:
        self.port, self.slug, self.run = port, slug, run
        self.numbers = itertools.count()

    def address(self, number: int) -> str:
        """Return the next address: two new ones, then one twice."""
        quarter, place = divmod(number, 4)
        return f"{self.slug}.{self.run}.{f'twin-{quarter}' if place > 1 else number}@bench.example"

    def sign_up(self, lead_in: float, seconds: float) -> Answers:
        """Have all clients post as often as they can."""
        begin = time.monotonic() + lead_in
        with ThreadPoolExecutor(CLIENTS) as pool:
            parts = list(pool.map(self._one, [begin] * CLIENTS, [begin + seconds] * CLIENTS))
        return Answers([status for part in parts for status in part.statuses], sum(part.counted for part in parts))

    def _one(self, begin: float, end: float) -> Answers:
        answers = Answers()
        while time.monotonic() < end:
            answers.statuses.append(self._post(self.address(next(self.numbers))))
            answers.counted += begin <= time.monotonic() < end
        return answers

    def _post(self, email: str) -> int:
        """Send one request on a connection of its own, with little more than a socket; return the status."""
        body = urlencode({"email": email, "password": "correct horse"}).encode()
        head = (
            f"POST /{self.slug}/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            f"Cookie: csrftoken={CSRF}\r\nX-CSRFToken: {CSRF}\r\n"
            f"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        answer = b""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as connection:
            connection.sendall(head.encode() + body)
            while chunk := connection.recv(65536):
                answer += chunk
        return int(answer[9:12])
