"""Pictures of browser locks for the documentation: ``python -m tests.scenarios.browser_screenshots``. Not a test."""

from __future__ import annotations

from contextlib import ExitStack

from tests.support.browsers import ChromiumProfile, browser

from .camera import Photographer, demo


def cart(ada: Photographer, again: Photographer) -> None:
    """Ada in two browsers: one has the cart, the other one waits and is refused."""
    mine = ada.open("/cart/")
    mine.until(lambda: "may change" in mine.text("#lock"), "no cart")
    for item in ("Teapot", "Cup", "Cup"):
        mine.click(f"[data-item={item}]")
        mine.until(lambda item=item: item in mine.text("#answer"), "no answer")
    late = again.open("/cart/")
    late.until(lambda: "next one" in late.text("#facts"), "no place in line")
    late.click("#late")
    late.until(lambda: "423" in late.text("#answer"), "not refused")
    mine.until(lambda: "423" in mine.text("#ledger"), "not in the ledger")
    ada.both("cart", 800, 700, "h2")
    again.both("cart-waiting", 800, 700, "h2")


def board(ada: Photographer, bo: Photographer) -> None:
    mine, theirs = ada.open("/board/"), bo.open("/board/")
    queen, knight = "[data-name=Queen]", "[data-name=Knight]"
    for tab, piece, key in ((mine, queen, "\ue014"), (theirs, knight, "\ue015")):
        tab.click(piece)
        tab.until(lambda tab=tab: "in your hand" in tab.text("#answer"), "not in hand")
        tab.type(piece, key)
        tab.until(lambda tab=tab: " to " in tab.text("#answer"), "not moved")
    mine.until(lambda: mine.text(f"{knight} .holder") == "Bo", "nobody sees Bo's hand")
    ada.both("board", 800, 750, "#help")
    ada.save("board-narrow", ada.shot(390, 640, "#help"))


def workers(ada: Photographer) -> None:
    tab = ada.open("/workers/")
    for way in ("without", "with"):
        tab.until(lambda: tab.run("return !document.querySelector('[aria-disabled=true]')"), "not ready")
        tab.click(f"[data-run={way}]")
        tab.until(lambda: "lost" in tab.text("#answer"), "not counted", 60)
    tab.until(lambda: tab.run("return !document.querySelector('[aria-disabled=true]')"), "not through")
    ada.both("workers", 800, 640, ".actions")


def main() -> None:
    with ExitStack() as stack:
        url = stack.enter_context(demo())
        taken = []
        for slug in ("ada", "ada", "bo"):
            profile = stack.enter_context(browser("chromium"))
            assert isinstance(profile, ChromiumProfile)
            taken.append(Photographer(profile, url, slug, "/board/", "browser"))
        ada, again, bo = taken
        cart(ada, again)
        board(ada, bo)
        workers(ada)


if __name__ == "__main__":
    main()
