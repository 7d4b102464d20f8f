"""A holder is stopped beyond the TTL of its lease, another one writes, the first wakes up and writes: never in."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.db import connections
from django.db.migrations.state import ProjectState

from django_distlock import advisory_lock
from django_distlock.data import EnforceFence
from tests.data.app.models import FencedLedger, Register
from tests.data.conftest import every_database
from tests.data.fences import LEASES, rows
from tests.data.paused import FRESH, STALE, TTL, WAYS, holder
from tests.faults.pausing import take_over, wake
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.tier2, pytest.mark.usefixtures("fenced")]


PAUSES, AT_ONCE = 1, 100


@pytest.fixture
def enforced(alias: str, fenced: None) -> Iterator[None]:
    """The table of raw SQL has its trigger; the others do without."""
    state = ProjectState.from_apps(apps)
    operation = EnforceFence("FencedLedger")
    with connections[alias].schema_editor() as editor:
        operation.database_forwards("dataapp", editor, state, state)
    yield
    with connections[alias].schema_editor() as editor:
        operation.database_backwards("dataapp", editor, state, state)


def new(alias: str, instances: list[Any]) -> list[int]:
    """The primary keys of new rows, which MySQL does not tell who makes many at once."""
    manager = type(instances[0])._default_manager.using(alias)
    manager.bulk_create(instances)
    return list(manager.order_by("-pk").values_list("pk", flat=True)[: len(instances)])


def play(child: Child, alias: str, name: str, number: int) -> Counter[tuple[str, str]]:
    """One pause with many leases: what came of the late writes."""
    work: list[tuple[str, dict[str, int], str]] = []
    made = iter(new(alias, [Register(owner="ann") for _ in range(3 * AT_ONCE)]))
    for index, ledger in enumerate(new(alias, [FencedLedger() for _ in range(AT_ONCE)])):
        pks = {way: next(made) for way in ("update", "save", "naive")} | {"raw": ledger}
        work.append((f"{name}-{number}-{index}", pks, WAYS[index % len(WAYS)]))
    child.say(work)
    assert child.hear() == "ready"
    leases = [take_over(child, advisory_lock(one, using=LEASES[alias]), TTL + 1) for one, _, _ in work]
    for lease, (_, pks, _) in zip(leases, work, strict=True):
        ours = [pks["update"], pks["save"], pks["naive"]]
        assert rows(alias).fenced(lease).filter(pk__in=ours).update(balance=FRESH) == 3
        FencedLedger.objects.using(alias).fenced(lease).filter(pk=pks["raw"]).update(amount=FRESH)
    child.say("go")
    wake(child)
    found = Counter(pair for outcome in child.hear() for pair in outcome.items())
    for lease in leases:
        lease.release()
    return found


@every_database
def test_no_late_write(alias: str, name: str, enforced: None) -> None:
    found: Counter[tuple[str, str]] = Counter()
    with Child(holder, alias) as child:
        for number in range(PAUSES):
            found += play(child, alias, name, number)
        child.say(None)
    all_of_them = PAUSES * AT_ONCE
    assert found == {
        ("update", "refused"): all_of_them,
        ("save", "refused"): all_of_them,
        ("raw", "refused"): all_of_them,
        ("naive", "accepted"): all_of_them,  # else nothing was shown
    }
    balances: Any = Counter(Register.objects.using(alias).values_list("balance", flat=True))
    assert balances == {FRESH: 2 * all_of_them, STALE: all_of_them}
    amounts: Any = Counter(FencedLedger.objects.using(alias).values_list("amount", flat=True))
    assert amounts == {FRESH: all_of_them}
