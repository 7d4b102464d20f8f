"""The scene of the demo in which a piece is in one hand at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.urls import clear_url_caches

from testproject.tabs.models import LedgerEntry, Piece

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Person, Room

pytestmark = pytest.mark.tier2
QUEEN, PAWN = "[data-name=Queen]", "[data-name=Pawn]"
ENTER, LEFT = "\ue007", "\ue012"


@pytest.fixture(autouse=True)
def demo(here: list[Person], settings: Any) -> Iterator[None]:
    """Whoever is logged in is so at the pages of the demo, too."""
    settings.ROOT_URLCONF = "testproject.urls"
    clear_url_caches()
    yield
    for model in (LedgerEntry, Piece):
        model.objects.all().delete()


def answered(tab: Room, text: str, where: str = "#answer") -> None:
    tab.until(lambda: text in tab.text(where), lambda: f"{text!r} is not in {tab.text(where)!r}")


def test_a_piece_is_in_one_hand_at_a_time(ada: Person, bo: Person) -> None:
    """By clicks, and by keys alone."""
    mine, theirs = ada.open("/board/"), bo.open("/board/")
    for tab in (mine, theirs):
        answered(tab, " on ", ".label")  # the script runs
    mine.click(QUEEN)
    answered(mine, "in your hand")
    answered(theirs, "Ada", f"{QUEEN} .holder")
    theirs.click(QUEEN)
    answered(theirs, "Ada has it")
    for key, text in ((ENTER, "in your hand"), (LEFT, "Pawn to"), (ENTER, "Pawn is on")):
        theirs.type(PAWN, key)
        answered(theirs, text)
    mine.click(QUEEN)
    theirs.until(lambda: not theirs.text(f"{QUEEN} .holder"), "the queen was not put down")
    theirs.click(QUEEN)
    answered(theirs, "Queen is in your hand")
