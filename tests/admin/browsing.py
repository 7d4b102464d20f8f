"""A real browser, a real server, and real processes that hold locks and wait for them."""

from __future__ import annotations

import shutil
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connections
from django.test import Client, override_settings
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from django_distlock import LockLost, advisory_lock
from django_distlock.heldlocks.rows import Rows
from django_distlock.registry import registry
from tests import axe
from tests.conftest import eventually
from tests.processes import Child, Servant

from .people import LIST, make_people, remove_people

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.http import HttpRequest, HttpResponse

    from tests.child import Link

# What stands on the page: alias, name, and how many processes wait. One engine of each kind.
SCENE = [
    ("postgres", "invoice:4711", 2),
    ("mysql", "nightly-import", 1),
    ("leasetable_postgres", "stock:shelf 9", 1),
    ("redis", "mail:newsletter", 2),
    ("zookeeper", "cluster:rebalance", 1),
]
# On the session that holds the first one.
BESIDE = "invoice:4712"
PATIENCE = 10
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


class StrictPolicy:
    """Middleware: what a careful site lets its pages do."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self.get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response


class Holder:
    """Another process: holds what it is told to."""

    def __init__(self, link: Link) -> None:
        self.leases: dict[str, Any] = {}

    def hold(self, using: str, name: str) -> str:
        lease = self.leases[name] = advisory_lock(name, using=using, timeout=PATIENCE).acquire()
        return lease.using

    def told(self, name: str) -> str:
        """What the holder is told while it still holds and does nothing."""
        lease, lost = self.leases[name], threading.Event()
        lease.on_lost(lambda *_: lost.set())
        lost.wait(PATIENCE)
        try:
            lease.ensure_held()
        except LockLost as error:
            return type(error).__name__
        return "nothing"

    def let_go(self, name: str) -> str:
        try:
            self.leases.pop(name).release()
        except LockLost as error:
            return type(error).__name__
        return "released"


def wait(link: Link, wanted: list[tuple[str, str]]) -> None:
    """A process that waits for each of the locks, in threads; ends by being killed."""
    for using, name in wanted:
        lock = advisory_lock(name, using=using, timeout=300)
        threading.Thread(target=lock.acquire, name=f"waiter of {name}", daemon=True).start()
    link.say("waiting")
    link.hear()


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
            MIDDLEWARE=["tests.admin.browsing.StrictPolicy", *settings.MIDDLEWARE],
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


@pytest.fixture(scope="module")
def holder(site: LiveServer) -> Iterator[Servant]:
    """The process that holds the scene's locks, while another one waits for them."""
    with ExitStack() as stack:
        stack.callback(end_scene)
        servant = stack.enter_context(Servant(Holder))
        for using, name, _waiters in SCENE:
            assert servant.do("hold", using, name) == using
        assert servant.do("hold", SCENE[0][0], BESIDE) == SCENE[0][0]
        for number in range(max(waiters for _using, _name, waiters in SCENE)):
            wanted = [(using, name) for using, name, waiters in SCENE if waiters > number]
            child = stack.enter_context(Child(wait, wanted))
            stack.callback(child.kill)
            assert child.hear() == "waiting"
        yield servant


@pytest.fixture(scope="module")
def scene(holder: Servant, logged_in: Page) -> None:
    """It is complete. Where the server knows only hashes of names, the holder has written them down by now: within two
    seconds, while the browser starts."""
    for using, name, count in SCENE:
        eventually(lambda u=using, n=name, c=count: waiters_of(u, n) == c, f"nobody waits for {name}", PATIENCE)
        assert name not in registry.entry(using).known_names().values()


def waiters_of(using: str, name: str) -> int | None:
    return next((row.info.waiters for row in Rows().of(using).rows if row.info.name == name), None)


def end_scene() -> None:
    """Who waited and was killed may have become a holder just before: its lease would last for half a minute."""
    for using, _name, _waiters in SCENE[2:]:  # sessions end with their processes
        for row in Rows().of(using).rows:
            if row.info.name in {name for _using, name, _waiters in SCENE}:
                row.take_away("the scene is over")


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
        before = self.find("html")
        element.click()
        self.until(lambda: before.id != self.find("html").id, "no other page came")
        self.until(lambda: self.run("return document.readyState") == "complete", "the page is not complete")

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
def page(databases: None, scene: None, logged_in: Page) -> Iterator[Page]:
    """The browser, logged in. It asks for nothing between tests."""
    yield logged_in
    logged_in.driver.get("about:blank")
