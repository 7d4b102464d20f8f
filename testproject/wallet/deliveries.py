"""One replay of the consumer: transfers are sent twice through a Redis stream, and one of their readers is killed."""

from __future__ import annotations

import time
import uuid
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from django.db import connection

from testproject.replay.tables import as_table

from .members import Member, filled_stream
from .messages import DELIVERIES
from .models import Account, Receipt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .ways import Way

OWNER = "consumer replay"  # nobody's account: what the replay makes, it clears away
START, AMOUNT = 1_000_000, 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    ways: Sequence[Way] = DELIVERIES
    messages: int = 100
    consumers: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WayResult:
    """`acts` is how many transfers were made of `messages`; `twice` messages acted more than once, `never` not at
    all; `drift` is the money made or lost by that, over all accounts."""

    slug: str
    title: str
    prevents: bool
    messages: int
    acts: int
    twice: int
    never: int
    drift: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    engine: str
    engine_name: str
    engine_version: str
    consumers: int
    ways: list[WayResult]
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def problems(ways: list[WayResult]) -> Iterator[str]:
    """Everything that is not as promised; empty when the replay is good."""
    for way in ways:
        if way.never or way.drift:
            yield f"{way.slug}: {way.never} messages never acted, and {way.drift} of money was made."
        if way.prevents and way.acts != way.messages:
            yield f"{way.slug}: {way.messages} messages acted {way.acts} times."
        if not way.prevents and not way.twice:
            yield f"{way.slug}: no message acted twice; the fault was not shown."


def table(ways: list[WayResult]) -> str:
    """The figures as a table for a terminal."""
    rows = [(way.slug, way.messages, way.acts, way.twice, way.never, way.drift) for way in ways]
    return as_table([("way", "messages", "acts", "twice", "never", "made"), *rows])


def story(ways: list[WayResult]) -> Iterator[str]:
    """What happened, one sentence per way."""
    for way in ways:
        sent = f"{way.messages} messages, each sent twice and one delivered once more"
        yield f"{way.title}: {sent}, made {way.acts} transfers."


def replay(plan: Plan, url: str, tell: Callable[[str], Any] = lambda line: None) -> Replay:
    results = []
    for way in plan.ways:
        tell(f"{way.title} ...")
        results.append(way_result(way, plan, url))
    return Replay(
        engine=connection.vendor,
        engine_name=connection.display_name,
        engine_version=".".join(str(part) for part in connection.get_database_version()),
        consumers=plan.consumers,
        ways=results,
        problems=list(problems(results)),
    )


def way_result(way: Way, plan: Plan, url: str) -> WayResult:
    hub, *others = fresh_accounts(plan.messages + 1)
    # One account takes part in all transfers, in half of them as the source: locks taken in the order of the message
    # would end in deadlocks. The other account is the message's own, and tells how often it has acted.
    pairs = [(hub, other) if number % 2 else (other, hub) for number, other in enumerate(others)]
    bodies = [{"id": str(uuid.uuid4()), "source": a, "target": b, "amount": AMOUNT} for a, b in pairs]
    started = time.monotonic()
    with ExitStack() as running:
        stream = running.enter_context(filled_stream(url, [body for body in bodies for _ in range(2)]))
        running.enter_context(Member(stream.name, way.slug, "doomed", die=True)).wait_for_its_death()
        names = (f"member-{number}" for number in range(plan.consumers))
        members = [running.enter_context(Member(stream.name, way.slug, name)) for name in names]
        stream.wait_until_empty(members)
    seconds = time.monotonic() - started
    balances = dict(Account.objects.filter(owner=OWNER).values_list("pk", "balance"))
    acts = [abs(START - balances[other]) // AMOUNT for other in others]
    Account.objects.filter(owner=OWNER).delete()
    Receipt.objects.filter(pk__in=[body["id"] for body in bodies]).delete()
    return WayResult(
        slug=way.slug,
        title=way.title,
        prevents=way.prevents,
        messages=plan.messages,
        acts=sum(acts),
        twice=sum(times > 1 for times in acts),
        never=acts.count(0),
        drift=sum(balances.values()) - START * len(balances),
        seconds=round(seconds, 3),
    )


def fresh_accounts(count: int) -> list[int]:
    Account.objects.filter(owner=OWNER).delete()
    Account.objects.bulk_create([Account(owner=OWNER, balance=START) for _ in range(count)])
    return list(Account.objects.filter(owner=OWNER).values_list("pk", flat=True))
