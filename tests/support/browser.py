"""Headless Chromium, and what a person does with it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.support import axe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PATIENCE = 15  # seconds


@contextmanager
def chromium() -> Iterator[webdriver.Chrome]:
    """A browser that speaks to this machine only."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-extensions", "--no-first-run", "--window-size=1280,900"),
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    # A click returns at once, as for a person: nobody has to wait for the answer before he clicks again.
    options.page_load_strategy = "none"
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as driver:
        driver.set_script_timeout(PATIENCE)
        yield driver


class Page:
    """What is seen in the browser, with the addresses of one site."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, path: str) -> None:
        self.follow(lambda: self.driver.get(self.url + path))

    def find(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[Any]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        """What stands in the first such element; nothing while there is none."""
        try:
            return "".join(each.text for each in self.all(selector)[:1])
        except (StaleElementReferenceException, WebDriverException):
            return ""  # the page is just being replaced

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], Any], message: str) -> Any:
        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(lambda _driver: condition(), message)

    def follow(self, act: Callable[[], Any]) -> None:
        """Do something that leads to another page, and wait until that is there."""
        before = self.find("html").id
        act()
        self.until(lambda: self._is_other(before), "no other page came")

    def press(self, selector: str = "form button", times: int = 1) -> None:
        """Real clicks, faster than a slow server answers; none of them waits for the answer to another."""
        clicks = ActionChains(self.driver, duration=0).move_to_element(self.find(selector))
        for _ in range(times):
            clicks = clicks.click().pause(0.1)
        clicks.perform()

    def _is_other(self, before: str) -> bool:
        try:
            return self.find("html").id != before and self.run("return document.readyState") == "complete"
        except WebDriverException:
            return False

    def scripts(self, on: bool) -> None:
        """Whether pages may run scripts, from the next page on. The tests' own run in any case."""
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not on})

    def dark(self, on: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def faults(self, *only: str) -> list[str]:
        """What axe calls serious or critical; of all rules, or of some."""
        return axe.faults(self.driver, *only)
