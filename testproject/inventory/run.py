"""One replay: every way in turn, by real processes, on the database of this process."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.db import connection

from .models import Item
from .records import Replay, WayResult, problems
from .ways import WAYS, Way
from .workers import Crew, crew

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`rounds` bounds the tries to make a fault show itself; `using` is the lock alias that gives the leases."""

    ways: Sequence[Way] = WAYS
    stock: int = 40
    workers: int = 8
    rounds: int = 5
    using: str = "leasetable"


def replay(plan: Plan, tell: Callable[[str], Any] = lambda line: None) -> Replay:
    results = []
    with crew(plan.workers) as workers:
        for way in plan.ways:
            tell(f"{way.title} ...")
            results.append(until_shown(workers, way, plan))
    return Replay(
        engine=connection.vendor,
        engine_name=connection.display_name,
        engine_version=".".join(str(part) for part in connection.get_database_version()),
        workers=plan.workers,
        using=plan.using,
        ways=results,
        problems=list(problems(results, {way.slug for way in plan.ways if way.pauses})),
    )


def until_shown(workers: Crew, way: Way, plan: Plan) -> WayResult:
    """One round for a way that keeps what it promises; else rounds until something was sold twice."""
    result = sell_out(workers, way, plan)
    for number in range(2, plan.rounds + 1):
        if way.prevents or result.oversold or result.errors:
            break
        result = replace(sell_out(workers, way, plan), rounds=number)
    return result


def sell_out(workers: Crew, way: Way, plan: Plan) -> WayResult:
    item = Item.objects.create(name=f"replayed {way.slug}", stock=plan.stock)
    started = time.monotonic()
    late, errors = workers.sell(way.slug, item.pk, using=plan.using, pausing=way.pauses)
    seconds = time.monotonic() - started
    item.refresh_from_db()
    sold = item.sales.count()
    Item.objects.filter(pk=item.pk).delete()
    return WayResult(
        slug=way.slug,
        title=way.title,
        prevents=way.prevents,
        rounds=1,
        stock=plan.stock,
        sold=sold,
        left=item.stock,
        late=late,
        seconds=round(seconds, 3),
        per_second=round(sold / seconds, 1),
        errors=sorted(set(errors)),
    )
