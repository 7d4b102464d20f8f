"""What a person does with the browser, with the mouse and without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from axe_core_python.base import AXE_SCRIPT
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from .people import LIST

if TYPE_CHECKING:
    from collections.abc import Callable

    from selenium import webdriver

PATIENCE = 10
# Tabs that are pressed at once.
STRIDE = 20
# Of axe-core in the wheel; docs/admin.md names it.
AXE = "4.4.3"


class Page:
    """What a person does with the browser."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, path: str = LIST) -> None:
        self.driver.get(self.url + path)

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], Any], message: str) -> Any:
        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(lambda _driver: condition(), message)

    def rows(self) -> list[dict[str, str]]:
        """Column -> text of every row."""
        found: list[dict[str, str]] = self.run(
            "return Array.from(document.querySelectorAll('#result_list tbody tr'), row =>"
            " Object.fromEntries(Array.from(row.cells, cell =>"
            "  [cell.className.split(' ')[0].replace('field-', ''), cell.innerText.trim()])))"
        )
        return found

    def names(self) -> list[str]:
        return [row["name"] for row in self.rows()]

    def follow(self, element: Any) -> None:
        """Click, and wait until the next page is there."""
        self.arrive(element.click)

    def arrive(self, act: Callable[[], Any]) -> None:
        """Do what leads to another page, and wait until that is there."""
        before = self.find("html")
        act()
        self.until(lambda: before.id != self.find("html").id, "no other page came")
        self.until(lambda: self.run("return document.readyState") == "complete", "the page is not complete")

    def type(self, *keys: str) -> None:
        """To whatever has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, selector: str, text: str = "", most: int = 60) -> None:
        """Tab until something like that has the focus, which must be seen; no mouse."""
        there = (
            "const it = document.activeElement; return it.matches(arguments[0]) && it.innerText.includes(arguments[1])"
        )
        passed = "return window.passed.some(it => it.matches(arguments[0]) && it.innerText.includes(arguments[1]))"
        self.run("window.passed = []; document.addEventListener('focusin', event => window.passed.push(event.target))")
        for _ in range(0, most, STRIDE):
            self.type(*[Keys.TAB] * STRIDE)
            if self.run(passed, selector, text):
                break
        else:
            raise AssertionError(f"{most} tabs do not lead to {selector} {text!r}")
        for _ in range(STRIDE):  # it went too far
            if self.run(there, selector, text):
                break
            ActionChains(self.driver).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
        assert self.run(there, selector, text), f"shift and tab do not lead back to {selector} {text!r}"
        assert self.run("return getComputedStyle(document.activeElement).outlineStyle") != "none", (
            "nobody sees where it is"
        )

    def dark(self, on: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.execute_async_script(  # colours change little by little
            "requestAnimationFrame(() => Promise.all(document.getAnimations().map(each => each.finished))"
            ".finally(arguments[0]))"
        )

    def faults(self, *only: str) -> list[str]:
        """What axe calls serious or critical; of all rules, or of some."""
        if not self.run("return 'axe' in window"):
            self.run(AXE_SCRIPT)
            assert self.run("return axe.version") == AXE
        found = self.driver.execute_async_script(
            "const done = arguments[1]; axe.run(document, arguments[0]).then(found => done(found.violations))",
            {"resultTypes": ["violations"]} | ({"runOnly": list(only)} if only else {}),
        )
        return [
            f"{fault['id']}: {node['html'][:300]} {node['failureSummary'][:300]}"
            for fault in found
            if fault["impact"] in ("serious", "critical")
            for node in fault["nodes"]
        ]
