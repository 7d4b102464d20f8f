"""Pictures of the double submission for the documentation: ``python -m tests.scenarios.screenshots``. Not a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selenium.webdriver import ActionChains

from tests.support.browsers import ChromiumProfile, browser

from .camera import Photographer, demo

if TYPE_CHECKING:
    from tests.support.browsers import Tab


def order(shopper: Photographer, way: str, item: str, times: int) -> Tab:
    tab = shopper.open(f"/orders/{way}/")
    tab.type("[name=item]", item)
    clicks = ActionChains(shopper.profile.driver, duration=0).move_to_element(shopper.profile.element("form button"))
    for _ in range(times):
        clicks = clicks.click().pause(0.1)
    clicks.perform()
    return tab


def placed(tab: Tab, text: str) -> bool:
    """Which of the answers is shown is chance, and so is how many orders there were by then."""
    if tab.text("#made"):
        if text in tab.text("#made"):
            return True
        tab.reload()
    return False


def pictures(shopper: Photographer) -> None:
    tab = order(shopper, "none", "Teapot", 5)
    tab.until(lambda: placed(tab, "5 orders"), "not all were placed")
    shopper.save("five", shopper.shot(900, 560))
    tab = order(shopper, "idempotent", "Kettle", 5)
    tab.until(lambda: placed(tab, "one order"), "not placed")
    shopper.open("/orders/")
    shopper.save("light", shopper.shot(1120, 860, "#latest"))
    tab = order(shopper, "idempotent", "Kettle", 1)
    tab.until(lambda: placed(tab, "one order"), "not placed")
    tab.follow(tab.back)
    tab.type("[name=note]", "as a present")
    tab.click("form button")
    tab.until(lambda: tab.text("h1") == "Already saved", "the page did not come")
    shopper.save("saved", shopper.shot(700, 360))


def waiting(shopper: Photographer) -> None:
    """Where the payment takes longer than a form waits."""
    tab = order(shopper, "idempotent", "Kettle", 5)
    tab.until(lambda: tab.text("h1") == "Still working", "the page did not come")
    shopper.save("working", shopper.shot(700, 300))


def main() -> None:
    for seconds, take in (("1.5", pictures), ("6", waiting)):
        with demo(("replay_orders",), DISTLOCK_DEMO_PAYMENT_SECONDS=seconds) as url, browser("chromium") as profile:
            assert isinstance(profile, ChromiumProfile)
            take(Photographer(profile, url, "", "/orders/", "orders"))


if __name__ == "__main__":
    main()
