"""Random histories of one article, beside a model that says what each step must answer: no lost update, no save that
vanishes, no one is told "held by you"."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.editing.records import EditConflict, EditLease
from django_distlock.editing.resources import resource_of
from django_distlock.leases import rows, upkeep
from django_distlock.leases.records import Busy
from tests.editing.store.desks import Desk, expire, make_article, rows_of, text_of, write_behind

if TYPE_CHECKING:
    from tests.support.places import Place

HISTORIES = int(os.environ.get("DISTLOCK_HISTORIES") or 20)
SHORTEST, LONGEST = 8, 30
# How often each step is taken, and a page comes again after a save or a refusal.
OFTEN = {"open": 6, "claim": 5, "beat": 4, "save": 8}
SOMETIMES = {"adopt": 2, "expire": 2, "write_behind": 2, "release": 1, "leave": 1, "take_over": 1, "break_it": 1}
SELDOM = {"write_beside": 1, "sweep": 0.3}
OPEN_AGAIN = 0.8


@dataclass
class Held:
    """What the row of the lease must say."""

    lease: str = ""
    person: str = ""
    alive: bool = False
    left: bool = False  # its page has gone: only adopt revives it
    fence: int = 0
    writes: int = 0

    @property
    def free(self) -> bool:
        return not self.lease or not self.alive

    def end(self) -> None:
        self.lease, self.alive, self.left = "", False, False


class History:
    """One article, three people with tabs, and steps at random."""

    def __init__(self, place: Place, random: random.Random) -> None:
        self.place, self.random = place, random
        self.article = make_article(place.alias)
        self.resource = resource_of(self.article)
        self.desks = [Desk(person) for person in ("ada", "ada", "bob", "eve")]
        self.text, self.row = "0", Held()
        self.seen: dict[str, int] = {}  # tab -> the number of writes when its form was rendered
        self.steps: list[str] = []
        self.saves = self.refusals = 0

    def run(self, steps: int) -> None:
        chances = OFTEN | SOMETIMES | SELDOM
        for _ in range(steps):
            (name,) = self.random.choices(list(chances), list(chances.values()))
            desk = self.random.choice(self.desks)
            self.steps.append(f"{name} {desk.person} {desk.tab[:4]}")
            getattr(self, name)(desk)
            self.check()
        rows_of(self.article).delete()

    def check(self) -> None:
        """The database says what the model says."""
        assert text_of(self.article) == self.text
        row = rows.read_one(self.resource)
        if row is None:
            assert not self.row.lease
            return
        assert (row.lease, row.held) == (self.row.lease, not self.row.free)
        assert row.fence >= self.row.fence
        self.row.fence = row.fence

    # forms

    def open(self, desk: Desk) -> None:
        desk.open(self.article)
        assert desk.shown == self.text
        self.seen[desk.tab] = self.row.writes

    def _open_again(self, desk: Desk) -> None:
        if self.random.random() < OPEN_AGAIN:
            self.open(desk)

    def _token(self) -> str:
        return str(self.random.randrange(10**9))

    def _expected(self, desk: Desk) -> str | None:
        """The reason for which a save must be refused."""
        if desk.grant is None:
            return "no form"
        if not self.row.free and self.row.person != desk.person:
            return "held"
        changed = desk.shown != self.text or self.seen[desk.tab] != self.row.writes
        return "changed" if changed else None

    def save(self, desk: Desk) -> None:
        if desk.grant is None:
            self.open(desk)
        expected, token = self._expected(desk), self._token()
        if expected is not None:
            with pytest.raises(EditConflict) as refused:
                desk.save(token)
            self._refused(desk, refused.value, expected)
            return
        desk.save(token)
        self.saves += 1
        self.text = f"{desk.shown};{token}"
        self.row.writes += 1
        if desk.lease and (self.row.free or self.row.lease == desk.lease):
            self._hold(desk)
        self._open_again(desk)

    def _refused(self, desk: Desk, conflict: EditConflict, expected: str) -> None:
        self.refusals += 1
        assert conflict.reason == expected
        if conflict.reason == "held":
            assert conflict.holder.label == self.row.person.title() != desk.person.title()
        else:
            self._open_again(desk)

    def write_behind(self, desk: Desk) -> None:
        token = self._token()
        write_behind(self.article, token)
        self.text += f";{token}"

    def write_beside(self, desk: Desk) -> None:
        """A write to a field that the forms do not have."""
        rows_of(self.article).update(section="sport")

    # leases

    def _hold(self, desk: Desk) -> None:
        self.row.lease, self.row.person = desk.lease, desk.person
        self.row.alive, self.row.left = True, False

    def _taken(self, desk: Desk, found: Any, expected: bool) -> None:
        if expected:
            assert isinstance(found, EditLease), found
            self._hold(desk)
            return
        assert (found.own, found.saving) == (False, False)
        assert found.holder.principal == f"user:{self.row.person}" != desk.owner.principal

    def claim(self, desk: Desk) -> None:
        allowed = self.row.free or self.row.person == desk.person
        self._taken(desk, desk.claim(self.resource), allowed)

    def adopt(self, desk: Desk) -> None:
        if not desk.lease:
            return
        mine = self.row.lease == desk.lease and self.row.person == desk.person
        if self.row.free or mine or self.row.person != desk.person:
            self._taken(desk, desk.adopt(self.resource), self.row.free or mine)
            return
        assert isinstance(found := desk.adopt(self.resource), Busy)
        assert found.own  # "you are editing this in another tab": a tab never takes from it by adopting

    def take_over(self, desk: Desk) -> None:
        before = self.row.fence
        found = desk.take_over(self.resource)
        self._taken(desk, found, expected=True)
        assert found.fence > before

    def beat(self, desk: Desk) -> None:
        if not desk.lease:
            return
        found = desk.renew(self.resource)
        if self.row.lease == desk.lease and not self.row.left:
            assert isinstance(found, EditLease)
            self.row.alive = True
        elif not self.row.free and found.reason in ("taken_over", "other_tab"):
            assert found.by

    def release(self, desk: Desk) -> None:
        if desk.lease:
            desk.release(self.resource)
            if self.row.lease == desk.lease:
                self.row.end()

    def leave(self, desk: Desk) -> None:
        if desk.lease:
            desk.release(self.resource, reserve=500)
            self.row.left = self.row.left or self.row.lease == desk.lease

    def expire(self, desk: Desk) -> None:
        expire(self.resource)
        self.row.alive = False

    def break_it(self, desk: Desk) -> None:
        ended = upkeep.break_lease(self.resource)
        assert (ended is None) == self.row.free
        if ended is not None:
            self.row.end()

    def sweep(self, desk: Desk) -> None:
        """Old rows go; forms from before their last write have run out by then."""
        if self.row.lease and self.row.alive:
            return
        for each in self.desks:
            if each.grant is not None and self.seen[each.tab] != self.row.writes:
                each.grant = None
        upkeep.sweep(self.place.alias, 0, of_objects=True)
        self.row.lease, self.row.left = "", False


def test_every_step_answers_as_the_model_says(place: Place) -> None:
    seed = random.randrange(10**9)
    saves = refusals = 0
    for number in range(HISTORIES):
        chance = random.Random(f"{seed}-{number}")
        history = History(place, chance)
        try:
            history.run(chance.randint(SHORTEST, LONGEST))
        except BaseException as error:
            error.add_note(f"History {number} of seed {seed} at {place}: {', '.join(history.steps)}.")
            raise
        saves, refusals = saves + history.saves, refusals + history.refusals
    assert saves
    assert refusals
