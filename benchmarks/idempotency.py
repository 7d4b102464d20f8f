"""What a key costs a whole request: Django's test client, in one process, with the middleware and without."""

from __future__ import annotations

import itertools
import random
import statistics
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.core.management import call_command
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from benchmarks.pinning import pinned
from benchmarks.servers import SERVERS
from django_distlock.idempotency import idempotent

if TYPE_CHECKING:
    from collections.abc import Callable

PLAIN = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
GUARDED = [*PLAIN, "django_distlock.idempotency.IdempotencyMiddleware"]
BATCH, WARM_UP = 10, 2
place = {"alias": "default"}


@dataclass
class Request:
    """Microseconds per request of one way, and the ratio to the view without the middleware in the same run."""

    group: str
    way: str
    median_us: float
    ratio: float


def write(request: HttpRequest) -> HttpResponse:
    """The view: one row, in autocommit."""
    with connections[place["alias"]].cursor() as cursor:
        cursor.execute("INSERT INTO distlock_bench_orders VALUES (1)")
    return HttpResponse("done", status=201)


@idempotent(atomic=True)
def exactly_once(request: HttpRequest) -> HttpResponse:
    """The same view in the exactly-once mode."""
    return write(request)


urlpatterns = [path("plain/", csrf_exempt(write)), path("atomic/", csrf_exempt(exactly_once))]


def requests(middleware: list[str], url: str, keys: Callable[[], str | None]) -> Callable[[], None]:
    """Something that sends a batch of requests through a handler of its own."""
    with override_settings(MIDDLEWARE=middleware):
        client = Client(headers={"Authorization": "Bearer a"})
        client.handler.load_middleware()

    def send() -> None:
        for _ in range(BATCH):
            key = keys()
            headers: Any = {} if key is None else {"Idempotency-Key": key}
            status = client.post(url, "{}", content_type="application/json", headers=headers).status_code
            if status != 201:
                raise RuntimeError(f"{url} answers {status}")

    return send


def measure(group: str, rounds: int) -> list[Request]:
    """Let the ways take turns in batches, so that a disturbance hits all of them alike."""
    server: Any = SERVERS[group]
    place["alias"] = server.alias
    call_command("migrate", "django_distlock", database=server.alias, verbosity=0)
    with connections[server.alias].cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS distlock_bench_orders (number integer)")
    site = {"DATABASE": server.alias, "LOCK": server.lock_alias, "REPLAY_TO_CREDENTIALS": True}
    try:
        with (
            override_settings(
                ROOT_URLCONF=__name__, DISTLOCK_IDEMPOTENCY=site, ALLOWED_HOSTS=["*"], DATABASE_ROUTERS=[]
            ),
            pinned(server.pids),
        ):
            return _measure(group, rounds)
    finally:
        with connections[server.alias].cursor() as cursor:
            cursor.execute("DROP TABLE distlock_bench_orders")
            cursor.execute("DELETE FROM django_distlock_idempotency")


def _measure(group: str, rounds: int) -> list[Request]:
    run, numbers = uuid.uuid4().hex, itertools.count()

    def fresh() -> str:
        return f"{run}-{next(numbers)}"

    ways = {
        "without the middleware": requests(PLAIN, "/plain/", lambda: None),
        "no key": requests(GUARDED, "/plain/", lambda: None),
        "first POST": requests(GUARDED, "/plain/", fresh),
        "first POST, atomic=True": requests(GUARDED, "/atomic/", fresh),
        "replay": requests(GUARDED, "/plain/", lambda: run),
    }
    samples: dict[str, list[float]] = {way: [] for way in ways}
    order, chance = list(ways.items()), random.Random(1)
    for turn in range(-WARM_UP, rounds):
        chance.shuffle(order)  # none always comes after the same other one, which leaves its caches behind
        for way, send in order:
            began = time.perf_counter()
            send()
            if turn >= 0:
                samples[way].append((time.perf_counter() - began) / BATCH * 1e6)
    medians = {way: statistics.median(values) for way, values in samples.items()}
    base = medians["without the middleware"]
    return [Request(group, way, median, median / base) for way, median in medians.items()]
