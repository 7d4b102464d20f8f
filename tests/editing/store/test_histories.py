"""Random histories against a model: no lost update, no save that vanishes, no one is told "held by you"."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

import pytest

from tests.editing.store.model import History
from tests.support.sizes import LONG

if TYPE_CHECKING:
    from tests.support.places import Place

HISTORIES = int(os.environ.get("DISTLOCK_HISTORIES") or (10_000 if LONG else 50))
SHORTEST, LONGEST = 8, 30


@pytest.mark.tier2
@pytest.mark.timeout(7200 if LONG else 120)
def test_every_step_answers_as_the_model_says(place: Place) -> None:
    """Each history has its seed in the notes of a failure."""
    seed = random.randrange(10**9)
    saves = refusals = 0
    for number in range(HISTORIES):
        chance = random.Random(f"{seed}-{number}")
        history = History(place, chance)
        try:
            history.run(chance.randint(SHORTEST, LONGEST))
        except BaseException as error:
            error.add_note(f"History {number} of seed {seed}.")
            raise
        saves, refusals = saves + history.saves, refusals + history.refusals
    assert saves > HISTORIES  # the histories are not only refusals
    assert refusals > HISTORIES / 2
