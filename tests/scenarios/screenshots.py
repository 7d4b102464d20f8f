"""Pictures of the double submission for the documentation: ``python -m tests.scenarios.screenshots``. Not a test.

On a database of its own, after a replay; the pages come from the server of the demo.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from testproject.replay.server import Server
from tests.support.browser import Page, chromium

from .databases import ROOT, demo_environment, manage

FOLDER = ROOT / "docs" / "_static"
LARGEST = 150_000  # bytes


def shot(page: Page, name: str, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    path = FOLDER / f"orders-{name}.png"
    path.write_bytes(page.driver.get_screenshot_as_png())
    assert path.stat().st_size < LARGEST, path


def pictures(page: Page) -> None:
    for way, item in (("none", "Teapot"), ("idempotent", "Kettle")):
        page.open(f"/orders/{way}/")
        page.find("[name=item]").send_keys(item)
        page.press(times=5)
        page.until(lambda: page.text("h1").startswith("Order ") and page.all("#made"), "no order was placed")
        if way == "none":
            page.until(lambda: made_five(page), "not all orders were placed")
            shot(page, "five", 900, 560)
    page.open("/orders/#latest")
    shot(page, "light", 1120, 860)
    page.open("/orders/idempotent/")
    page.press()
    page.until(lambda: page.all("#made"), "no order was placed")
    page.follow(page.driver.back)
    page.find("[name=note]").send_keys("as a present")
    page.press()
    page.until(lambda: page.text("h1") == "Already saved", "the page did not come")
    shot(page, "saved", 700, 360)


def made_five(page: Page) -> bool:
    """Which of five answers is shown is chance, and so is how many orders there were by then."""
    if "5 orders" in page.text("#made"):
        return True
    page.follow(page.driver.refresh)
    return False


def waiting(page: Page) -> None:
    """Where the payment takes longer than a form waits."""
    page.open("/orders/idempotent/")
    page.press(times=5)
    page.until(lambda: page.text("h1") == "Still working", "the page did not come")
    shot(page, "working", 700, 300)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {"DB": "sqlite", "DISTLOCK_DEMO_DB": str(Path(folder, "demo.sqlite3"))}
        for command in ("migrate", "replay_orders"):
            done = manage(command, environment=environment)
            if done.returncode:
                sys.exit(done.stderr)
        os.environ.update(demo_environment(environment))
        for seconds, take in (("1.5", pictures), ("6", waiting)):
            os.environ["DISTLOCK_DEMO_PAYMENT_SECONDS"] = seconds
            with Server(threads=16) as server, chromium() as driver:
                take(Page(driver, server.url.rstrip("/")))


if __name__ == "__main__":
    main()
