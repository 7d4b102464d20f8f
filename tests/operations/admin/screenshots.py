"""Pictures of the real pages for the documentation: ``make screenshots``. Not one of the tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_distlock import advisory_lock
from tests.operations.admin.pages import address, row_of
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from tests.operations.admin.browsing import Page

FOLDER = ROOT / "docs" / "_static"
LARGEST = 150_000  # bytes


def shot(page: Page, name: str, width: int, height: int) -> None:
    page.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )
    path = FOLDER / f"heldlocks-{name}.png"
    path.write_bytes(page.driver.get_screenshot_as_png())
    assert path.stat().st_size < LARGEST, path


def test_pictures(page: Page) -> None:
    with advisory_lock("price-list", using="memory", shared=True, timeout=1):
        page.open()
        shot(page, "light", 1720, 720)
        page.dark(True)
        shot(page, "dark", 1720, 720)
        page.dark(False)
        shot(page, "narrow", 420, 800)
        row = row_of("postgres", "invoice:4711")
        page.open(address(row))
        shot(page, "detail", 1100, 640)
        page.open(address(row, "break"))
        shot(page, "break", 1100, 560)
