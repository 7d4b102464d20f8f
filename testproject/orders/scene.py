"""The ways to take an order, side by side, and one order sent many times at once: as a form, and to the API."""

from __future__ import annotations

import json
import secrets
import uuid
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.urls import reverse

from testproject.replay import scene
from testproject.replay.crowd import Crowd, Post, Visitor, span
from testproject.replay.scene import Bars, Column, Figures, Option, Scene, Stage, extra, listed, many
from testproject.replay.server import Server

from .models import Order

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from testproject.replay.crowd import Answer

FORM, API = "form", "API call"
PLACED, BUSY = (201, 302), 409


@dataclass(frozen=True, slots=True)
class Way(scene.Way):
    """`prevents`: is there a key, by which a repeated request is known as such?"""

    @property
    def url_name(self) -> str:
        return f"order-{self.slug}"

    @property
    def api_name(self) -> str:
        return f"order-api-{self.slug}"


NONE = Way(
    "none",
    "No key",
    "",
    "Pay, insert, redirect. Each click is a request of its own, and the server takes each for another order.",
    prevents=False,
)
IDEMPOTENT = Way(
    "idempotent",
    "Idempotency key",
    "{% idempotency_key %} and @idempotent",
    "The form brings a key. The first request claims it and runs; the others wait for its answer and get the same one. "
    "The claim is a row of its own, so nothing is locked while the payment is under way.",
    prevents=True,
)
ATOMIC = Way(
    "atomic",
    "Exactly once",
    "{% idempotency_key %} and @idempotent(atomic=True)",
    "Key, order and answer are one transaction: a server that is killed leaves all three or none. The transaction is "
    "open while the payment is under way.",
    prevents=True,
)
WAYS = (NONE, IDEMPOTENT, ATOMIC)


class Orders(Scene):
    name = "orders"
    help = "Send one order many times at once to a real server with 4 processes, as a form and as an API call."
    ways = WAYS
    options = (Option("clicks", 50, "how often each order is sent"),)
    columns = (
        Column("Sent as", "kind"),
        Column("Requests", "requests"),
        Column("Orders", "orders"),
        Column("Too many", "duplicates", alarm=True),
        Column("Payments", "payments"),
        Column("Answers", lambda row: listed(row["statuses"])),
        Column("Wrong answers", "wrong", alarm=True),
        Column("Seconds", lambda row: f"{row['seconds']:.1f}"),
    )
    bars = tuple(
        Bars(
            f"Orders made by sending one {kind} {{phases[{number}][requests]}} times at once",
            lambda way, number=number: way["phases"][number]["orders"],
            lambda way, number=number: f"{way['phases'][number]['orders']}{extra(way['phases'][number]['duplicates'])}",
            alarm=lambda way, number=number: way["phases"][number]["duplicates"],
        )
        for number, kind in enumerate((FORM, API))
    )

    @contextmanager
    def stage(self, given: Mapping[str, Any]) -> Iterator[Stage]:
        clicks = given["clicks"]
        crowd = Crowd(processes=2, threads=(clicks + 1) // 2, watched=False)
        with crowd, Server(threads=clicks + 8) as server:
            facts = {"server_processes": server.workers, "payment_seconds": settings.PAYMENT_SECONDS}

            def act(way: Way) -> Figures:
                return {"phases": [sent(crowd, server.port, way, kind, clicks) for kind in (FORM, API)]}

            yield Stage(act, facts, server.log_tail)

    def shown(self, way: Figures) -> bool:
        return all(phase["duplicates"] for phase in way["phases"])

    def rows(self, way: Figures) -> list[Figures]:
        return list(way["phases"])

    def problems(self, way: Figures) -> Iterator[str]:
        for phase in way["phases"]:
            told = f"{phase['kind']}: {phase['requests']} requests"
            if phase["wrong"]:
                yield f"{told} had {phase['wrong']} wrong answers: {', '.join(phase['errors'])}."
            if way["prevents"] and (phase["orders"], phase["payments"], phase["first"]) != (1, 1, 1):
                made = f"{phase['orders']} orders with {phase['payments']} payments"
                yield f"{told} made {made}, and {phase['first']} of them ran the view."

    def story(self, way: Figures) -> str:
        told = [
            f"{phase['requests']} times the same {phase['kind']} made {many(phase['orders'], 'order')}"
            for phase in way["phases"]
        ]
        return f"{way['title']}: {', '.join(told)}."


def sent(crowd: Crowd, port: int, way: Way, kind: str, clicks: int) -> Figures:
    """The same order, sent `clicks` times at once; what it made is cleared away."""
    order = {"item": "cup", "quantity": 2, "sheet": str(uuid.uuid4())}
    if kind == FORM:
        post = Visitor.arrive(port, reverse(way.url_name)).post(order, accept="text/html")
    else:
        headers = {"Content-Type": "application/json", "Idempotency-Key": secrets.token_urlsafe(16)}
        post = Post(port, reverse(way.api_name), json.dumps(order), headers)
    answers, _ = crowd.fire([post] * clicks)
    made = Order.objects.filter(sheet=order["sheet"])
    payments = {reverse("order", args=[pk]): payment for pk, payment in made.values_list("pk", "payment")}
    made.delete()
    return phase(kind, answers, payments)


def phase(kind: str, answers: list[Answer], orders: Mapping[str, str]) -> Figures:
    """`orders`: the address of each order that was made, and its payment. `first` answers were a view's own and
    `replayed` ones stored; `wrong` are those that neither name the order nor say that it is being made."""
    placed = [answer for answer in answers if answer.status in PLACED and answer.location in orders]
    wrong = [answer for answer in answers if answer not in placed and answer.status != BUSY]
    labels = Counter(f"{answer.status} replayed" if answer.replayed else str(answer.status) for answer in answers)
    return {
        "kind": kind,
        "requests": len(answers),
        "orders": len(orders),
        "duplicates": max(0, len(orders) - 1),
        "payments": len(set(orders.values())),
        "first": sum(not answer.replayed for answer in placed),
        "replayed": sum(answer.replayed for answer in placed),
        "busy": sum(answer.status == BUSY for answer in answers),
        "statuses": dict(sorted(labels.items())),
        "wrong": len(wrong),
        "errors": sorted({f"{answer.status} {answer.error}".strip() for answer in wrong}),
        "seconds": round(span(answers), 3),
    }
