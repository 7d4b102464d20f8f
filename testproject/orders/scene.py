"""One order sent many times at once: as a form, and to the API."""

from __future__ import annotations

import json
import secrets
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.conf import settings
from django.urls import reverse

from testproject.replay.crowd import Request, fire, open_form, summary
from testproject.replay.scene import Column, Figures, Option, Scene, Stage, Way
from testproject.replay.server import Server

from .models import Order
from .views import WAYS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FORM, API = "form", "API call"
PLACED, BUSY = (201, 302), 409


class Orders(Scene):
    name = "orders"
    help = "Send one order many times at once to a real server with 4 processes, as a form and as an API call."
    ways = WAYS
    options = (Option("clicks", 30, "how often each order is sent"),)
    columns = (
        Column("Sent as", "kind"),
        Column("Requests", "requests"),
        Column("Orders", "orders"),
        Column("Too many", "duplicates", alarm=True),
        Column("Payments", "payments"),
        Column("Answers", "answers"),
        Column("Wrong answers", "wrong", alarm=True),
        Column("Seconds", "seconds", pattern="{:.1f}"),
    )
    fault = ("duplicates",)
    story = "{requests} times the same {kind}, {orders} placed"
    plots = (("orders", "Orders made by sending one form {requests} times at once"),)

    @contextmanager
    def stage(self, options: Mapping[str, int]) -> Iterator[Stage]:
        with Server() as server:
            facts = {"server_processes": server.workers, "payment_seconds": settings.PAYMENT_SECONDS}
            yield Stage(lambda way: [sent(server.port, way, kind, options["clicks"]) for kind in (FORM, API)], facts)

    def more_problems(self, row: Figures, prevents: bool) -> Iterator[str]:
        if prevents and (row["orders"], row["payments"], row["first"]) != (1, 1, 1):
            yield f"{row['requests']} requests made {row['payments']} payments, and {row['first']} ran the view."


def sent(port: int, way: Way, kind: str, clicks: int) -> Figures:
    """The same order, sent `clicks` times at once; what it made is cleared away."""
    order = {"item": "cup", "quantity": 2, "sheet": str(uuid.uuid4())}
    if kind == FORM:
        request = open_form(port, reverse(f"order-{way.slug}"))(accept="text/html", **order)
    else:
        headers = {"Content-Type": "application/json", "Idempotency-Key": secrets.token_urlsafe(16)}
        request = Request(port, reverse(f"order-api-{way.slug}"), json.dumps(order), headers)
    answers, _ = fire([request] * clicks)
    made = Order.objects.filter(sheet=order["sheet"])
    payments = {reverse("order", args=[pk]): payment for pk, payment in made.values_list("pk", "payment")}
    made.delete()
    # `wrong` are those that neither name the order nor say that it is being made.
    placed = [answer for answer in answers if answer.status in PLACED and answer.headers.get("Location") in payments]
    busy = [answer for answer in answers if answer.status == BUSY]
    found = summary(answers, placed + busy)
    return found | {
        "kind": kind,
        "orders": len(payments),
        "duplicates": max(0, len(payments) - 1),
        "payments": len(set(payments.values())),
        "first": len(placed) - found["replayed"],  # a view's own answers, not stored ones
        "busy": len(busy),
    }
