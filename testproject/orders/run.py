"""One replay of the double submission: every way in turn against one real server, on the database of this process."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.db import connection
from django.urls import reverse

from testproject.replay.server import Server

from .clicks import Request
from .models import Order
from .records import Phase, Replay, WayResult, problems
from .ways import WAYS, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FORM, API = "form", "API call"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`clicks`: how often each request is sent."""

    ways: Sequence[Way] = WAYS
    clicks: int = 50


def replay(plan: Plan, tell: Callable[[str], Any] = lambda line: None) -> tuple[Replay, str]:
    """Run the plan; the result, and the end of the server's log if it did not go as promised."""
    with Server(threads=plan.clicks + 8) as server:
        results = []
        for way in plan.ways:
            tell(f"{way.title} ...")
            phases = [phase(server.port, way, kind, plan.clicks) for kind in (FORM, API)]
            results.append(WayResult(slug=way.slug, title=way.title, prevents=way.prevents, phases=phases))
        found = list(problems(results))
        measured = Replay(
            engine=connection.vendor,
            engine_name=connection.display_name,
            engine_version=".".join(str(part) for part in connection.get_database_version()),
            server_processes=server.workers,
            payment_seconds=settings.PAYMENT_SECONDS,
            ways=results,
            problems=found,
        )
        return measured, server.log_tail() if found else ""


def phase(port: int, way: Way, kind: str, clicks: int) -> Phase:
    """The same order, sent `clicks` times at once; what it made is cleared away."""
    order = {"item": "cup", "quantity": 2, "sheet": str(uuid.uuid4())}
    if kind == FORM:
        request = Request.form(port, reverse(way.url_name), **order)
    else:
        request = Request.call(port, reverse(way.api_name), **order)
    answers = request.send_at_once(clicks)
    made = Order.objects.filter(sheet=order["sheet"])
    payments = {reverse("order", args=[pk]): payment for pk, payment in made.values_list("pk", "payment")}
    made.delete()
    return Phase.of(kind, answers, payments)
