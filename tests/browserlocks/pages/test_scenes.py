"""The scene of the demo in which a piece is in one hand at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connections

from testproject.replay.server import Server
from testproject.tabs.models import Entry, Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .conftest import Person, Room

pytestmark = pytest.mark.tier2
QUEEN, PAWN = "[data-name=Queen]", "[data-name=Pawn]"
ENTER, LEFT = "\ue007", "\ue012"


@pytest.fixture(scope="module")
def demo(server: str) -> Iterator[str]:
    """The demo's own server, on the same database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DB", "sqlite")
        patch.setenv("DISTLOCK_DEMO_DB", str(connections["default"].settings_dict["NAME"]))
        with Server(workers=2, threads=16) as running:
            yield running.url.rstrip("/")


@pytest.fixture(autouse=True)
def at_the_demo(demo: str, at: Callable[[str], None]) -> Iterator[None]:
    """Whoever is logged in is so here, too: cookies do not depend on ports."""
    at(demo)
    yield
    for model in (Entry, Piece):
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
