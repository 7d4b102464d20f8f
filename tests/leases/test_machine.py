"""Any order of steps of a few tabs, beside a model that says what each must answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from django_distlock.leases import queue, rows, upkeep
from django_distlock.leases.records import Lost, Row, named
from tests.browserlocks.store.tabs import Tab, forget_everything

if TYPE_CHECKING:
    from tests.support.places import Place

NAME = "the name"
WHO = st.integers(0, 3)


class Tabs(RuleBasedStateMachine):
    """Tabs are numbers in the model: three people, the last two tabs are of one person."""

    alias = "default"

    def __init__(self) -> None:
        super().__init__()
        forget_everything(self.alias)
        self.tabs = [Tab(self.alias, NAME, person) for person in ("ada", "bob", "eve", "eve")]
        self.holder: int | None = None
        self.fence = 0
        self.last: dict[int, int] = {}  # tab -> the fence that it was given
        self.queue: list[int] = []  # without dead tickets

    @rule(who=WHO, queue=st.booleans())
    def ask(self, who: int, queue: bool) -> None:
        found = self.tabs[who].ask(queue=queue)
        if self.holder == who or (self.holder is None and (not self.queue or self.queue[0] == who)):
            assert isinstance(found, Row), found
            assert found.fence == self.fence if self.holder == who else found.fence > self.fence
            self.fence = self.last[who] = found.fence
            if self.holder is None:
                self.gone(who)
            self.holder = who
            return
        assert not isinstance(found, Row), found
        if queue and who not in self.queue:
            self.queue.append(who)
        place = self.queue.index(who) if who in self.queue else len(self.queue)
        assert (found.place, found.queued, found.crowded) == (place, queue, False)
        assert (found.holder and found.holder.lease) == self.lease()

    @rule(who=WHO)
    def renew(self, who: int) -> None:
        found = self.tabs[who].renew()
        assert isinstance(found, Lost) == (not self.current(who)), found

    @rule(who=WHO, older=st.booleans())
    def lock(self, who: int, older: bool) -> None:
        """With its fence, or with an old one."""
        tab = self.tabs[who]
        tab.fence -= older
        with transaction.atomic(using=self.alias):
            assert (tab.lock() is not None) == (self.current(who) and not older)
        tab.fence += older

    @rule(who=WHO)
    def release(self, who: int) -> None:
        freed = self.tabs[who].release()
        assert freed or self.holder != who
        self.gone(who)
        self.end(self.holder == who)

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.tabs[who].leave()
        self.gone(who)

    @rule(who=WHO)
    def miss(self, who: int) -> None:
        self.tabs[who].miss()
        self.gone(who)

    @rule()
    def expire(self) -> None:
        self.tabs[0].expire()
        self.end(True)

    @rule(stale=st.booleans())
    def break_it(self, stale: bool) -> None:
        ended = upkeep.break_lease(named(self.alias, NAME), self.fence - stale)
        assert (ended is not None) == (self.holder is not None and not stale)
        self.end(ended is not None)

    @rule()
    def sweep(self) -> None:
        upkeep.sweep(self.alias, 0, of_objects=False)

    def current(self, who: int) -> bool:
        return self.holder == who and self.last.get(who) == self.fence

    def gone(self, who: int) -> None:
        self.queue = [other for other in self.queue if other != who]

    def end(self, ended: bool) -> None:
        self.holder = None if ended else self.holder

    def lease(self) -> str | None:
        return None if self.holder is None else self.tabs[self.holder].lease

    @invariant()
    def the_tables_say_what_the_model_says(self) -> None:
        row: Any = rows.read_one(named(self.alias, NAME))
        assert (None if row is None or not row.held else row.lease) == self.lease()
        first = queue.heads(self.alias, [NAME])[NAME].first
        assert first == (self.tabs[self.queue[0]].holder if self.queue else None)
        assert row is None or row.fence == self.fence


@pytest.mark.timeout(120)
@pytest.mark.parametrize("examples", [8, pytest.param(40, marks=pytest.mark.tier2)])
def test_any_order_of_steps(place: Place, examples: int) -> None:
    machine = type("TabsOfThisPlace", (Tabs,), {"alias": place.alias})
    few = settings(
        max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(machine, settings=few)
