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

from django_distlock import LockLost, advisory_lock
from django_distlock.heldlocks.rows import listed
from django_distlock.registry import registry
from tests.conftest import eventually
from tests.processes import Child, Servant

from .people import make_people, remove_people
from .window import PATIENCE, Page

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
