"""Any order of steps of a few tabs, beside a model that says what each must answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from django_distlock.browser import store
from django_distlock.browser.records import BrowserLease, LeaseLost
from tests.browserlocks.store.tabs import Tab, expire, forget_everything

if TYPE_CHECKING:
    from tests.support.places import Place

NAME = "the name"
WHO = st.integers(0, 3)


@dataclass
class Model:
    """What the tables must say. Tabs are numbers; a dead ticket is in no queue."""

    holder: int | None = None
    fence: int = 0
    last: dict[int, int] = field(default_factory=dict)  # tab -> the fence that it was given
    queue: list[int] = field(default_factory=list)

    def may_take(self, who: int) -> bool:
        return self.holder == who or (self.holder is None and (not self.queue or self.queue[0] == who))


class Tabs(RuleBasedStateMachine):
    """Three people; the last two tabs are of one person."""

    alias = "default"

    def __init__(self) -> None:
        super().__init__()
        forget_everything(self.alias)
        self.tabs = [Tab(self.alias, NAME, person) for person in ("ada", "bob", "eve", "eve")]
        self.model = Model()

    @rule(who=WHO, queue=st.booleans())
    def ask(self, who: int, queue: bool) -> None:
        model, found = self.model, self.tabs[who].ask(queue=queue)
        if model.may_take(who):
            assert isinstance(found, BrowserLease), found
            assert found.fence == model.fence if model.holder == who else found.fence > model.fence
            model.fence = model.last[who] = found.fence
            if model.holder is None:
                model.queue = [other for other in model.queue if other != who]
            model.holder = who
            return
        assert not isinstance(found, BrowserLease), found
        if queue and who not in model.queue:
            model.queue.append(who)
        place = model.queue.index(who) if who in model.queue else len(model.queue)
        assert (found.place, found.queued, found.crowded) == (place, queue, False)
        holder = None if model.holder is None else self.tabs[model.holder].lease
        assert (found.holder and found.holder.lease) == holder

    @rule(who=WHO)
    def renew(self, who: int) -> None:
        found = self.tabs[who].renew()
        assert isinstance(found, LeaseLost) == (not self.current(who)), found

    @rule(who=WHO)
    def lock(self, who: int) -> None:
        with transaction.atomic(using=self.alias):
            assert (self.tabs[who].lock() is not None) == self.current(who)

    @rule(who=WHO)
    def lock_with_an_old_fence(self, who: int) -> None:
        tab = self.tabs[who]
        fence, tab.fence = tab.fence, tab.fence - 1
        with transaction.atomic(using=self.alias):
            assert tab.lock() is None
        tab.fence = fence

    @rule(who=WHO)
    def release(self, who: int) -> None:
        freed = self.tabs[who].release()
        assert freed or self.model.holder != who
        self.gone(who)
        if self.model.holder == who:
            self.model.holder = None

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        self.tabs[who].leave()
        self.gone(who)

    @rule(who=WHO)
    def miss(self, who: int) -> None:
        """It does not ask for too long."""
        self.tabs[who].miss()
        self.gone(who)

    @rule()
    def expire(self) -> None:
        expire(self.alias, NAME)
        self.model.holder = None

    @rule(stale=st.booleans())
    def break_it(self, stale: bool) -> None:
        ended = store.break_lease(self.alias, NAME, self.model.fence - stale)
        assert (ended is not None) == (self.model.holder is not None and not stale)
        if ended is not None:
            self.model.holder = None

    @rule()
    def sweep(self) -> None:
        store.sweep(self.alias, 0)

    def current(self, who: int) -> bool:
        return self.model.holder == who and self.model.last.get(who) == self.model.fence

    def gone(self, who: int) -> None:
        self.model.queue = [other for other in self.model.queue if other != who]

    @invariant()
    def the_tables_say_what_the_model_says(self) -> None:
        row: Any = store.read(self.alias, [NAME]).get(NAME)
        holder = None if row is None or not row.held else row.lease
        assert holder == (None if self.model.holder is None else self.tabs[self.model.holder].lease)
        first = store.heads(self.alias, [NAME])[NAME].first
        assert first == (self.tabs[self.model.queue[0]].holder if self.model.queue else None)
        assert row is None or row.fence == self.model.fence


@pytest.mark.tier2
@pytest.mark.timeout(120)
def test_any_order_of_steps(place: Place) -> None:
    machine = type("TabsOfThisPlace", (Tabs,), {"alias": place.alias})
    few = settings(
        max_examples=40,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=few)
