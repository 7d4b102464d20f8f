"""The pages in the clothes of other packages, at 1300 pixels, light and dark: nothing invisible, nothing cut."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.operations.admin.browsing import Page
from tests.operations.admin.pages import LIST, remove_people
from tests.operations.admin.themed import NAME, THEMES, serve
from tests.support import axe
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]

# What is ours on a page; the rest is the theme's.
OURS = (".distlock-page", ".distlock-refresh", "#distlock-errors", ".distlock-list tbody")
# What axe says of a contrast that is too low; and what WCAG wants at least, of large text.
RATIO, SEEN = re.compile(r"color contrast of ([0-9.]+)"), 3.0
# Text that does not fit its box, or a box that ends outside of the window or of what scrolls.
CUT = """
const found = [];
for (const each of document.querySelectorAll(arguments[0].map(it => `${it} *`).join())) {
  const box = each.getBoundingClientRect();
  if (!box.width || each.closest('.distlock-hidden')) continue;
  const hides = getComputedStyle(each).overflowX !== 'visible';
  if (hides && each.scrollWidth > each.clientWidth + 1 || box.right > innerWidth + 1 || box.left < -1) {
    found.push(each.outerHTML.slice(0, 100));
  }
}
for (const each of document.querySelectorAll('.distlock-list')) {
  if (each.scrollWidth > each.clientWidth + 1) found.push(`the list: ${each.scrollWidth} of ${each.clientWidth}`);
}
return found;
"""
# The edge of a field must be seen: a border or a background of its own.
EDGE = """
const style = getComputedStyle(document.querySelector('#distlock-reason'));
return [style.borderBottomStyle, parseFloat(style.borderBottomWidth), style.borderBottomColor];
"""


@pytest.fixture(params=THEMES)
def page(request: pytest.FixtureRequest, chrome: Any, databases: None) -> Iterator[Page]:
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.operations.admin.themed_settings",
        "DISTLOCK_TEST_THEME": request.param,
    }
    try:
        with Child(serve, env=environment) as child:
            page = Page(chrome, child.hear())
            page.log_in()
            size = {"width": 1300, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            yield page
            chrome.get("about:blank")
            child.say("end")
    finally:
        chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        remove_people()


def faint(page: Page) -> list[str]:
    """Text that is hard to read. The colour of links is the theme's: jazzmin's and grappelli's have a little less
    contrast than WCAG wants, but can be seen."""
    present = [selector for selector in OURS if page.all(selector)]
    ours = axe.faults(page.driver, "color-contrast", within=present, without=["a:not(.distlock-break)"])
    every = axe.faults(page.driver, "color-contrast", within=present)
    return ours + [fault for fault in every if float(RATIO.findall(fault)[0]) < SEEN]


def test_nothing_is_invisible_and_nothing_is_cut(page: Page) -> None:
    found = {}
    page.open()
    assert NAME in page.find(".distlock-list").text
    assert page.find("#distlock-refresh").text == "Refresh every 5 s"
    assert len(page.all(".distlock-list thead th")) == 9
    links = {link.text: link.get_attribute("href") for link in page.all("th.field-name a")}
    detail = links[NAME].removeprefix(page.url)
    for path in (LIST, detail, detail.replace("/change/", "/break/")):
        page.open(path)
        for dark in (True, False):
            page.dark(dark)
            found[path, dark] = faint(page) + page.run(CUT, OURS)
    style, width, colour = page.run(EDGE)
    assert style == "solid"
    assert width >= 1
    assert colour not in ("transparent", "rgba(0, 0, 0, 0)", "rgb(255, 255, 255)")
    assert not any(found.values()), found
