"""Processes at the same articles at once, with writers that know no edit locks among them."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.editing import store
from django_distlock.editing.records import EditLease
from django_distlock.editing.resources import resource_of
from tests.conftest import eventually
from tests.editing.store.desks import Desk, make_article, text_of
from tests.editing.store.rush import claim_at_once, edit, hold_and_hang
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


def test_of_fifty_claims_at_once_one_wins(alias: str) -> None:
    """From 4 processes. SQLite's one write lock makes them come one after the other."""
    article = make_article(alias)
    with ExitStack() as stack:
        crowds = [stack.enter_context(Child(claim_at_once, alias, article.pk, count)) for count in (13, 13, 12, 12)]
        for child in crowds:
            assert child.hear() == "ready"
        for child in crowds:
            child.say("go")
        told = [child.hear() for child in crowds]
    assert not [odd for _, each in told for odd in each]
    winners = [lease for won, _ in told for lease in won]
    assert len(winners) == 1
    assert store.read([resource_of(article)])[resource_of(article).digest].lease == winners[0]


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
