"""A real browser and a real server."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connections
from django.test import Client, override_settings
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from django_distlock.manager.registry import registry
from tests.operations.admin.people import LIST, make_people, remove_people
from tests.operations.admin.scene import SCENE
from tests.support import axe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.http import HttpRequest, HttpResponse

    from tests.operations.admin.scene import Scene

PATIENCE = 10
# Tabs that are pressed at once.
STRIDE = 20
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


class StrictPolicy:
    """Middleware: what a careful site lets its pages do."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response


@pytest.fixture(scope="module")
def chrome() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-extensions", "--no-first-run", "--window-size=1280,900"),
        # nothing but the server under test
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver"))) as driver:
        driver.set_script_timeout(PATIENCE)
        yield driver


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: Any) -> Iterator[LiveServer]:
    """The test project, as far as its aliases are part of the scene."""
    used = {using for using, _name, _waiters in SCENE} | {"memory"}
    with (
        django_db_blocker.unblock(),
        override_settings(
            DISTLOCK={alias: configured for alias, configured in settings.DISTLOCK.items() if alias in used},
            MIDDLEWARE=["tests.operations.admin.browsing.StrictPolicy", *settings.MIDDLEWARE],
            ALLOWED_HOSTS=["127.0.0.1"],
        ),
    ):
        server = LiveServer("127.0.0.1:0")
        try:
            yield server
        finally:
            server.stop()
            registry.close()
            connections.close_all()


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
        """Column -> text of every row. An engine that is late, as on a busy machine, is asked again, as people do."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and self.all("#distlock-errors li.error"):
            self.driver.refresh()
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

    def tab_to(self, selector: str, text: str = "", most: int = 120) -> None:
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
        return axe.faults(self.driver, *only)


@pytest.fixture(scope="module")
def logged_in(site: LiveServer, chrome: webdriver.Chrome) -> Iterator[Page]:
    people = make_people()
    client = Client()
    client.force_login(people["boss"])
    chrome.get(f"{site.url}/static/admin/css/base.css")
    chrome.add_cookie({"name": settings.SESSION_COOKIE_NAME, "value": client.cookies["sessionid"].value})
    try:
        yield Page(chrome, site.url)
    finally:
        chrome.get("about:blank")
        remove_people()


@pytest.fixture
def page(databases: None, scene: Scene, logged_in: Page) -> Iterator[Page]:
    """The browser, logged in. It asks for nothing between tests."""
    yield logged_in
    logged_in.driver.get("about:blank")
