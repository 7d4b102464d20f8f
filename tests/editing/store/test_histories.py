"""Random histories against a model: no lost update, no save that vanishes, no one is told "held by you"."""

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING

from tests.editing.store.model import History

if TYPE_CHECKING:
    from tests.support.places import Place

HISTORIES = int(os.environ.get("DISTLOCK_HISTORIES") or 20)
SHORTEST, LONGEST = 8, 30


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
    assert saves
    assert refusals
