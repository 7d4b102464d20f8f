"""What a request of distlock.js costs the server: processor time, over an empty view that knows who is logged in."""

from __future__ import annotations

import json
import random
import secrets
import statistics
import time
from typing import TYPE_CHECKING, Any

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.http import HttpRequest, JsonResponse
from django.test import Client, override_settings
from django.urls import include, path

from benchmarks.editing import MIDDLEWARE, OneDatabase, place
from benchmarks.idempotency import BATCH, WARM_UP, Request
from benchmarks.pinning import pinned
from benchmarks.servers import SERVERS
from django_distlock.browser import lock_grant

if TYPE_CHECKING:
    from collections.abc import Callable

EMPTY = "an empty view with a login"
RENEW, ACQUIRE, WAIT, RELEASE = "renew a lease", "acquire a free lock", "ask again while waiting", "release"


def empty(request: HttpRequest) -> JsonResponse:
    """Knows who sends the request, and does nothing."""
    return JsonResponse({"user": request.user.is_authenticated})


def grant(request: HttpRequest) -> JsonResponse:
    """Sign a grant."""
    return JsonResponse({"grant": lock_grant(request.GET["name"], request)})


urlpatterns = [
    path("empty/", empty),
    path("grant/", grant),
    path("distlock/", include("django_distlock.browser.urls")),
]


class Tab:
    """One user: a lock that is held, one that is taken and given back in turn, and one that another user holds."""

    def __init__(self) -> None:
        self.users = [User.objects.create(username=secrets.token_hex(8)) for _ in range(2)]
        self.client, other = (Client(enforce_csrf_checks=True) for _ in self.users)
        for client, user in zip((self.client, other), self.users, strict=True):
            client.handler.load_middleware()
            client.force_login(user)
        self.token = self._token(self.client)
        self.held, self.free, self.busy = (self._grant(self.client, name) for name in ("held", "free", "busy"))
        self.lease, self.waiting = secrets.token_hex(16), secrets.token_hex(16)
        self.fence = self._posted("leases/", {"grant": self.held, "id": self.lease}, 201)["fence"]
        self._posted("leases/", {"grant": self._grant(other, "busy"), "id": self.waiting}, 201, other)
        self.taken: list[str] = []

    def _token(self, client: Client) -> str:
        found: str = client.get("/distlock/csrf/").json()["csrf"]
        return found

    def _grant(self, client: Client, name: str) -> str:
        found: str = client.get("/grant/", {"name": name}).json()["grant"]
        return found

    def _posted(self, url: str, body: Any, status: int, client: Client | None = None) -> Any:
        sender, token = (self.client, self.token) if client is None else (client, self._token(client))
        response = sender.post(
            url if url.startswith("/") else f"/distlock/{url}",
            json.dumps(body),
            content_type="application/json",
            headers={"X-CSRFToken": token},
        )
        if response.status_code != status:
            raise RuntimeError(f"{url} answers {response.status_code}: {response.content[:200]!r}")
        return response.json() if response.content else None

    def empty(self) -> None:
        """The measure: a POST of the same size."""
        self._posted("/empty/", {"leases": [{"id": self.lease, "fence": self.fence, "grant": self.held}]}, 200)

    def renew(self) -> None:
        """What a page with a lock sends every ten seconds."""
        batch = [{"id": self.lease, "fence": self.fence, "grant": self.held}]
        if "lost" in self._posted("leases/renew/", {"leases": batch}, 200)["leases"][0]:
            raise RuntimeError("The lease is lost.")

    def acquire(self) -> None:
        """What `request()` sends first. Each lock has its own name, which exists from then on."""
        lease = secrets.token_hex(16)
        self._posted("leases/", {"grant": self.free, "id": lease}, 201)
        self.taken.append(lease)

    def release(self) -> None:
        """What it sends last."""
        self._posted(f"leases/{self.taken.pop()}/release/", {}, 204)

    def wait(self) -> None:
        """What a waiter sends again and again."""
        self._posted("leases/", {"grant": self.busy, "id": self.waiting, "again": True}, 409)


def measure(group: str, rounds: int) -> list[Request]:
    """Let the ways take turns in batches, so that a disturbance hits all of them alike."""
    server: Any = SERVERS[group]
    place["alias"] = server.alias
    call_command("migrate", database=server.alias, verbosity=0)
    with (
        override_settings(
            ROOT_URLCONF=__name__,
            MIDDLEWARE=MIDDLEWARE,
            ALLOWED_HOSTS=["*"],
            DATABASE_ROUTERS=[OneDatabase()],
            DISTLOCK_BROWSER={"DATABASE": server.alias, "TTL": 3600, "MAX_HELD": 1000},
        ),
        pinned(server.pids),
    ):
        tab = Tab()
        try:
            return _measure(group, tab, rounds)
        finally:
            for user in tab.users:
                user.delete()
            with connections[server.alias].cursor() as cursor:
                cursor.execute("DELETE FROM django_distlock_weblease")
                cursor.execute("DELETE FROM django_distlock_browserticket")


def _measure(group: str, tab: Tab, rounds: int) -> list[Request]:
    ways: list[tuple[str, Callable[[], None]]] = [(EMPTY, tab.empty), (RENEW, tab.renew), (WAIT, tab.wait)]
    samples: dict[str, list[float]] = {way: [] for way in (EMPTY, RENEW, ACQUIRE, WAIT, RELEASE)}
    chance = random.Random(1)

    def timed(send: Callable[[], None], count: int) -> float:
        began = time.process_time()
        for _ in range(count):
            send()
        return time.process_time() - began

    for turn in range(-WARM_UP, rounds):
        chance.shuffle(ways)
        found = {way: timed(send, BATCH) for way, send in ways}
        found |= {ACQUIRE: 0.0, RELEASE: 0.0}
        for _ in range(BATCH):
            found[ACQUIRE] += timed(tab.acquire, 1)
            found[RELEASE] += timed(tab.release, 1)
        if turn >= 0:
            for way, seconds in found.items():
                samples[way].append(seconds / BATCH * 1e6)
    medians = {way: statistics.median(values) for way, values in samples.items()}
    return [Request(group, way, median, median / medians[EMPTY]) for way, median in medians.items()]
