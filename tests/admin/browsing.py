"""A real browser, a real server, and real processes that hold locks and wait for them."""

from __future__ import annotations

import shutil
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from axe_core_python.base import AXE_SCRIPT
from django.conf import settings
from django.db import connections
from django.test import Client, override_settings
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from django_distlock import LockLost, advisory_lock
from django_distlock.heldlocks.rows import listed
from django_distlock.registry import registry
from tests.conftest import eventually
from tests.processes import Child, Servant

from .people import LIST, make_people, remove_people

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
# What is broken, each by one test.
DOOMED = [("postgres", "doomed invoice", 2), ("mysql", "doomed import", 1), ("redis", "doomed newsletter", 2)]
DOOMED_BESIDE = "doomed as well"
PATIENCE = 10
# Tabs that are pressed at once.
STRIDE = 20
# Of axe-core in the wheel; docs/admin.md names it.
AXE = "4.4.3"
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

    def hold_many(self, using: str, names: list[str]) -> int:
        for name in names:
            self.hold(using, name)
        return len(names)

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


def play(stack: ExitStack, held: Sequence[tuple[str, str, int]], beside: str) -> Servant:
    """The process that holds some locks, ``beside`` on the session of the first, while others wait for them."""
    stack.callback(clear, held)
    servant = stack.enter_context(Servant(Holder))
    for using, name, _waiters in held:
        assert servant.do("hold", using, name) == using
    assert servant.do("hold", held[0][0], beside) == held[0][0]
    for number in range(max(waiters for _using, _name, waiters in held)):
        wanted = [(using, name) for using, name, waiters in held if waiters > number]
        child = stack.enter_context(Child(wait, wanted))
        stack.callback(child.kill)
        assert child.hear() == "waiting"
    return servant


def clear(held: Sequence[tuple[str, str, int]]) -> None:
    """Who waited and was killed may have become a holder just before: its lease would last for half a minute."""
    for using in {using for using, _name, _waiters in held} - {"postgres", "mysql"}:  # sessions end with processes
        for row in listed(using).rows:
            if row.info.name in {name for _using, name, _waiters in held}:
                row.take_away("the scene is over")


def complete(held: Sequence[tuple[str, str, int]], beside: str) -> None:
    """Wait until all is to be seen. Where the server knows only hashes of names, the holder writes them down within two
    seconds."""
    for using, name, count in held:
        eventually(lambda u=using, n=name, c=count: waiters_of(u, n) == c, f"nobody waits for {name}", PATIENCE)
        assert name not in registry.entry(using).known_names().values()
    eventually(lambda: waiters_of(held[0][0], beside) == 0, f"{beside} is not seen", PATIENCE)


def waiters_of(using: str, name: str) -> int | None:
    return next((row.info.waiters for row in listed(using).rows if row.info.name == name), None)


@pytest.fixture(scope="module")
def holder(site: LiveServer) -> Iterator[Servant]:
    """The process that holds the scene's locks, while others wait for them."""
    with ExitStack() as stack:
        yield play(stack, SCENE, BESIDE)


@pytest.fixture(scope="module")
def scene(holder: Servant, logged_in: Page) -> None:
    """It is complete: that took the two seconds in which the browser started."""
    complete(SCENE, BESIDE)


@pytest.fixture(scope="module")
def victim(site: LiveServer) -> Iterator[Servant]:
    """The process that holds what is to be broken, and loses its sessions: not that of the scene, which other tests
    look at, in any order."""
    with ExitStack() as stack:
        servant = play(stack, DOOMED, DOOMED_BESIDE)
        complete(DOOMED, DOOMED_BESIDE)
        yield servant


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
