"""A real browser, and the test project on a real server in this process, whose locks are on its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connections
from django.test import Client, override_settings
from pytest_django.live_server_helper import LiveServer
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from django_distlock.manager.registry import registry
from tests.operations.admin.pages import LIST, make_people, remove_people
from tests.support import axe
from tests.support.browsers import browser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.http import HttpRequest, HttpResponse

PATIENCE = 20
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
def chrome() -> Iterator[Any]:
    with browser("chromium") as profile:
        profile.driver.set_script_timeout(PATIENCE)
        yield profile.driver


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """Its address."""
    aliases = {alias: settings.DISTLOCK[alias] for alias in ("memory", "redis", "postgres")}
    middleware = [f"{__name__}.StrictPolicy", *settings.MIDDLEWARE]
    with (
        django_db_blocker.unblock(),
        override_settings(DISTLOCK=aliases, MIDDLEWARE=middleware, ALLOWED_HOSTS=["127.0.0.1"]),
    ):
        server = LiveServer("127.0.0.1:0")
        try:
            yield server.url
        finally:
            server.stop()
            registry.close()
            connections.close_all()


class Page:
    """What a person does with the browser."""

    def __init__(self, driver: Any, url: str) -> None:
        self.driver, self.url = driver, url

    def log_in(self) -> None:
        """As somebody who may do everything."""
        client = Client()
        client.force_login(make_people()["boss"])
        self.open("/static/admin/css/base.css")
        self.driver.add_cookie({"name": settings.SESSION_COOKIE_NAME, "value": client.cookies["sessionid"].value})

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

    def names(self) -> list[str]:
        found: list[str] = self.run(  # at once: a refresh may replace the list at any time
            "return Array.from(document.querySelectorAll('#result_list th.field-name bdi'), name => name.innerText)"
        )
        return found

    def follow(self, element: Any) -> None:
        """Click, and wait until the next page is there."""
        before = self.find("html")
        element.click()
        self.until(lambda: before.id != self.find("html").id, "no other page came")
        self.until(lambda: self.run("return document.readyState") == "complete", "the page is not complete")

    def dark(self, on: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def faults(self, *only: str) -> list[str]:
        """What axe calls serious or critical; of all rules, or of some."""
        return axe.faults(self.driver, *only)


@pytest.fixture
def page(databases: None, site: str, chrome: Any) -> Iterator[Page]:
    """The browser, logged in. It asks for nothing between tests."""
    found = Page(chrome, site)
    try:
        found.log_in()
        yield found
    finally:
        chrome.get("about:blank")
        remove_people()
