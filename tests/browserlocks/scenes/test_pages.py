"""What people see: the cart in tabs and browsers, pieces in hands, workers that count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import axe
from tests.support.browsers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.browsers import Tab

    from .conftest import Person

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: six browsers
QUEEN, PAWN = "[data-name=Queen]", "[data-name=Pawn]"
# Give all leases of this user back, without a word to their tabs.
RELEASE_ALL = """
const headers = { "X-CSRFToken": document.querySelector("[name=csrfmiddlewaretoken]").value };
const gone = ({ leases }) => leases.map(({ id }) => fetch(`/distlock/leases/${id}/`, { method: "DELETE", headers }));
fetch("/distlock/leases/").then((answer) => answer.json()).then((found) => Promise.all(gone(found)))
  .then(() => { window.gone = true; });
"""
ENTER, ESCAPE, RIGHT, LEFT = "\ue007", "\ue00c", "\ue014", "\ue012"


def has_the_cart(tab: Tab, patience: float = PATIENCE) -> None:
    tab.until(lambda: "may change" in tab.text("#lock"), lambda: f"no cart: {tab.text('#lock')}", patience)


def waits(tab: Tab, who: str, where: str) -> None:
    tab.until(
        lambda: who in tab.text("#lock") and where in tab.text("#facts"),
        lambda: f"not {where!r}: {tab.text('#facts')}, {tab.run('return document.visibilityState')}",
    )


def answered(tab: Tab, text: str) -> None:
    tab.until(lambda: text in tab.text("#answer"), lambda: f"{text!r} is not in {tab.text('#answer')!r}")


def the_board(person: Person) -> Tab:
    """The board, once it listens to clicks and keys."""
    tab = person.open("/board/")
    tab.until(lambda: " on " in tab.text(".label"), "the script does not run")
    return tab


def put_down(tab: Tab) -> None:
    """The queen, so that the next test finds her free: a tab that is closed may lose its last request."""
    tab.click(QUEEN)
    answered(tab, "Queen is on")


# the cart


def test_three_tabs_and_another_browser_get_the_cart_one_after_the_other(ada: Person, bo: Person) -> None:
    """Bo's browser is Ada's second one here."""
    bo.home.follow(lambda: bo.home.click("[formaction$='/ada/']"))
    try:
        first = ada.open("/cart/")
        has_the_cart(first)
        first.until(lambda: "..." not in first.text("#ledger"), "the cart was not shown")
        second = ada.open("/cart/")
        waits(second, "Ada", "next one")
        third = bo.home  # a hidden tab asks once a minute, and WebKit hides all but the first one
        third.open(f"{bo.url}/cart/")
        waits(third, "Ada", "1 more")
        cups = int(first.text("[data-quantity=Cup]"))
        first.click("[data-item=Cup]")
        first.until(lambda: first.text("[data-quantity=Cup]") == str(cups + 1), "the cart is wrong")
        # a tab that never had the cart, and one that had it
        second.click("#late")
        answered(second, "423")
        first.click("#hand-on")
        has_the_cart(second)
        first.click("#late")
        answered(first, "423")
        first.until(lambda: "423 refused" in first.text("#ledger"), "the refusal is not shown")
        waits(third, "Ada", "next one")
        ada.close(second)
        has_the_cart(third, 45)  # a browser may lose the last request of a page: then the lease ends after 30 s
        third.click("[data-item=Cup]")
        answered(third, "204")
        third.until(lambda: third.text("[data-quantity=Cup]") == str(cups + 2), "the cart is wrong")
    finally:
        bo.home.open(f"{bo.url}/board/")
        bo.home.follow(lambda: bo.home.click("[formaction$='/bo/']"))


# the board


def test_a_piece_is_in_one_hand_at_a_time(ada: Person, bo: Person) -> None:
    mine, theirs = the_board(ada), the_board(bo)
    mine.click(QUEEN)
    answered(mine, "in your hand")
    theirs.until(lambda: theirs.text(f"{QUEEN} .holder") == "Ada", "nobody sees Ada's hand")
    theirs.click(QUEEN)
    answered(theirs, "Ada has it")
    theirs.click(PAWN)
    answered(theirs, "in your hand")
    theirs.type(PAWN, LEFT)
    answered(theirs, "Pawn to")
    mine.click(QUEEN)
    theirs.type(PAWN, ESCAPE)
    answered(theirs, "Pawn is on")
    theirs.until(lambda: not theirs.text(f"{QUEEN} .holder"), "the queen was not put down")
    theirs.click(QUEEN)
    answered(theirs, "Queen is in your hand")
    put_down(theirs)


def test_the_board_works_by_keys_alone(ada: Person) -> None:
    tab = the_board(ada)
    tab.run("document.querySelector(arguments[0]).focus()", PAWN)
    before = int(tab.run("return document.querySelector(arguments[0]).dataset.column", PAWN))
    step, after = (LEFT, before - 1) if before > 1 else (RIGHT, before + 1)
    tab.type(PAWN, ENTER)
    answered(tab, "in your hand")
    tab.type(PAWN, step)
    answered(tab, "Pawn to")
    assert int(tab.run("return document.querySelector(arguments[0]).dataset.column", PAWN)) == after
    tab.type(PAWN, ENTER)
    answered(tab, "Pawn is on")


@pytest.mark.alike
def test_a_hand_that_comes_too_late_moves_nothing(ada: Person, bo: Person) -> None:
    """The lease of a piece is taken away behind the back of its tab, and the next step is refused."""
    mine, theirs = the_board(ada), the_board(bo)
    mine.click(QUEEN)
    answered(mine, "in your hand")
    mine.run(RELEASE_ALL)
    mine.until(lambda: mine.run("return window.gone"), "not released")
    theirs.click(QUEEN)
    answered(theirs, "in your hand")
    where = theirs.run("return document.querySelector(arguments[0]).dataset.column", QUEEN)
    mine.type(QUEEN, LEFT)
    mine.until(
        lambda: "Refused with 423" in mine.text("#answer") or "was lost" in mine.text("#answer"),
        lambda: f"the step was not refused: {mine.text('#answer')}",
    )
    assert theirs.run("return document.querySelector(arguments[0]).dataset.column", QUEEN) == where
    put_down(theirs)


# the workers


def test_the_workers_lose_steps_without_the_mutex_only(ada: Person) -> None:
    tab = ada.open("/workers/")

    def press(way: str) -> None:
        """Once the script has come, and the one before is through."""
        tab.until(lambda: not tab.run("return document.querySelector('[aria-disabled=true]')"), "not ready")
        tab.click(f"[data-run={way}]")

    for way, lost in (("without", True), ("with", False)):
        press(way)
        tab.until(lambda way=way: tab.text(f"#{way} td:last-child") != "-", lambda: tab.text("#answer"), 60)
        assert (tab.text(f"#{way} td:nth-of-type(3)") != "0") is lost
    press("end")
    answered(tab, "knows that its work was not finished")


# all three


@pytest.mark.alike
@pytest.mark.parametrize("path", ["/cart/", "/board/", "/workers/"])
@pytest.mark.parametrize("width", [1280, 320])
def test_axe_finds_nothing_and_nothing_sticks_out(
    ada: Person, path: str, width: int, clean: Callable[[Tab], None]
) -> None:
    tab = ada.open(path)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver = tab.profile.driver  # type: ignore[attr-defined]
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        for dark in (True, False):
            tab.profile.dark(dark)
            assert axe.faults(tab.profile) == []
        assert tab.run("return document.documentElement.scrollWidth <= innerWidth")
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    clean(tab)


@pytest.mark.alike
def test_the_pages_send_a_strict_policy(ada: Person, served: str, clean: Callable[[Tab], None]) -> None:
    for path in ("/cart/", "/board/", "/workers/"):
        tab = ada.open(path)
        found = tab.run("return fetch(location.href).then((answer) => answer.headers.get('Content-Security-Policy'))")
        assert found == "default-src 'self'", path
        clean(tab)
