"""Processes at the same articles at once, with writers that know no edit locks among them."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.editing.records import EditLease
from django_distlock.editing.resources import resource_of
from tests.conftest import eventually
from tests.editing.store.desks import Desk, make_article, text_of
from tests.editing.store.rush import edit, hold_and_hang
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.support.places import Place

pytestmark = pytest.mark.tier2
PROCESSES, SECONDS = 6, 2.0
ARTICLES = 3


@pytest.mark.timeout(300)
def test_no_update_is_lost_and_no_save_vanishes(place: Place) -> None:
    """What was acknowledged is in the text, in the order of the fences, and nothing else is."""
    articles = [make_article(place.alias) for _ in range(ARTICLES)]
    told: list[dict[str, Any]] = []
    with ExitStack() as stack:
        people = [
            stack.enter_context(
                Child(edit, tuple(place), [a.pk for a in articles], f"person{number % 15}", SECONDS, f"{number}")
            )
            for number in range(PROCESSES)
        ]
        for child in people:
            assert child.hear() == "ready"
        for child in people:
            child.say("go")
        told = [child.hear(timeout=SECONDS + 60) for child in people]
    assert not [wrong for each in told for wrong in each["wrong"]]
    for article in articles:
        tokens = text_of(article).split(";")[1:]
        committed = [token for each in told for pk, token in each["saved"] + each["written"] if pk == article.pk]
        assert sorted(tokens) == sorted(committed)
        fences = sorted((fence, lease) for each in told for pk, fence, lease in each["fences"] if pk == article.pk)
        assert all(before[0] < after[0] for before, after in pairwise(fences))
    assert sum(len(each["saved"]) for each in told) > PROCESSES
    assert sum(each["refused"] for each in told) > 0


def test_a_process_that_is_killed_while_it_saves_leaves_nothing(alias: str) -> None:
    """Its transaction ends with it, and its lease with the TTL: the text is as before, and others get in."""
    article, bob = make_article(alias), Desk("bob")
    with Child(hold_and_hang, alias, article.pk) as ada:
        assert ada.hear() == "held"
        ada.say("save")
        assert ada.hear() == "saving"
        ada.kill()
    eventually(lambda: isinstance(bob.claim(resource_of(article)), EditLease), "its locks stay")
    bob.open(article)
    bob.save("bob")
    assert text_of(article) == "0;bob"
