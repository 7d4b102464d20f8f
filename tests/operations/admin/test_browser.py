"""The pages in a real browser, with locks that other processes hold and wait for, and in the clothes of themes."""

from __future__ import annotations

import re
import uuid
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.conf import settings as usual
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db import connections
from django.test import Client, override_settings
from django.urls import include, path
from pytest_django.live_server_helper import LiveServer

from django_distlock import advisory_lock, held_locks
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.operations.admin.pages import LIST, log_in, remove_people
from tests.operations.programs import hold, wait
from tests.support import axe
from tests.support.browsers import Tab, browser
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.child import Link

pytestmark = [pytest.mark.tier2, pytest.mark.usefixtures("databases")]
NAME = "nightly-import of all the invoices of the year"
# What a careful site lets its pages do.
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def strict_policy(get_response: Any) -> Any:
    def middleware(request: Any) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return middleware


class Page(Tab):
    """A tab of somebody who may do everything."""

    def __init__(self, tab: Tab, url: str) -> None:
        super().__init__(tab.profile, tab.handle)
        self.url = url
        self.driver: Any = tab.profile.driver  # type: ignore[attr-defined]
        self.open(f"{url}/static/admin/css/base.css")
        session = log_in(Client(), "boss").cookies["sessionid"].value
        self.driver.add_cookie({"name": usual.SESSION_COOKIE_NAME, "value": session})

    def go(self, where: str = LIST) -> None:
        self.open(self.url + where)

    def press(self, selector: str) -> None:
        """A link or a button that leads to another page."""
        self.follow(lambda: self.click(selector))

    def get(self, selector: str, attribute: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])[arguments[1]]", selector, attribute))

    def names(self) -> list[str]:
        """All at once: a refresh may replace the list at any time."""
        script = (
            "return Array.from(document.querySelectorAll('#result_list th.field-name bdi'), name => name.innerText)"
        )
        return list(self.run(script))


@contextmanager
def visit(tab: Tab, url: str) -> Iterator[Page]:
    try:
        yield Page(tab, url)
    finally:
        tab.open("about:blank")  # it asks for nothing between tests
        remove_people()


@pytest.fixture(scope="module")
def tab() -> Iterator[Tab]:
    with browser("chromium") as profile:
        yield profile.tab()


@pytest.fixture(scope="module")
def site(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The test project on a real server in this process."""
    aliases = {alias: usual.DISTLOCK[alias] for alias in ("memory", "redis", "postgres")}
    middleware = [f"{__name__}.strict_policy", *usual.MIDDLEWARE]
    with (
        django_db_blocker.unblock(),
        override_settings(DISTLOCK=aliases, MIDDLEWARE=middleware, ALLOWED_HOSTS=["127.0.0.1"]),
    ):
        server = LiveServer("127.0.0.1:0")
        yield server.url
        server.stop()
        registry.close()
        connections.close_all()


@pytest.fixture
def page(databases: None, site: str, tab: Tab) -> Iterator[Page]:
    with visit(tab, site) as found:
        yield found


@pytest.mark.parametrize("using", ["redis", "postgres"])
def test_from_the_list_to_a_broken_lock(page: Page, using: str) -> None:
    """To the lock, to the question, yes: the victim is told, and the next in line gets the lock."""
    token = uuid.uuid4().hex  # a lease of another test may not have ended yet, whose name has the number of the process
    name, beside = (f"{each}:{token}" for each in ("invoice", "beside"))
    with Child(hold, using, name, beside) as victim:
        assert victim.hear() == "held"
        with Child(wait, using, name) as waiter:

            def seen() -> list[tuple[int | None, bool]]:
                """Where the server knows only hashes of names, the holder writes them down."""
                infos = [info for info in held_locks(using)[0].locks if info.name in (name, beside)]
                return sorted((info.waiters, f":{victim.pid}:" in (info.holder or "")) for info in infos)

            eventually(lambda: seen() == [(0, True), (1, True)], "it is not seen")
            page.go(f"{LIST}?using={using}")
            page.type("#searchbar", token)
            page.press("#changelist-search input[type=submit]")
            page.press("th.column-waiters a")
            assert page.names() == [beside, name]  # nobody waits for the first one
            page.press("th.column-waiters a")
            assert page.get("th.column-waiters", "ariaSort") == "descending"
            listed = page.driver.current_url
            page.press("th.field-name a")
            assert page.text("h1") == name
            assert page.run("return document.querySelectorAll('.distlock-waiting li').length") == 1
            detail = page.driver.current_url
            page.press("a.distlock-break")
            assert page.text("h1") == "Break this lock?"
            assert (beside in page.text(".distlock-facts")) == (using == "postgres")
            page.type("#distlock-reason", "hangs since noon")
            page.press(".distlock-yes")
            assert page.text(".messagelist .success").startswith(f"The lock “{name}” was broken.")
            assert page.driver.current_url == listed
            assert "hangs since noon" in LogEntry.objects.get(object_repr=name).change_message
            assert waiter.hear() == "it is mine"
            page.open(detail)
            assert page.text("h1") == "This lock is no longer held"
            waiter.say()
        victim.say()
        assert victim.hear() == ["LockLost", "LockLost" if using == "postgres" else "released"]


def requests_in(page: Page, milliseconds: int) -> int:
    """How often the page begins to ask for itself in that time; what is under way may end late."""
    found: int = page.profile.execute_async_script(
        "const done = arguments[1], send = window.fetch; let begun = 0;"
        "window.fetch = (...asked) => { begun += 1; return send(...asked); };"
        "setTimeout(() => { window.fetch = send; done(begun); }, arguments[0])",
        milliseconds,
    )
    return found


def test_the_list_refreshes_itself_and_stops(page: Page) -> None:
    with ExitStack() as stack:
        for number in range(2):
            stack.enter_context(advisory_lock(f"old {number}", using="memory"))
        page.go(f"{LIST}?using=memory")
        assert page.get("#distlock-refresh", "ariaPressed") == "false"
        page.run("document.querySelector('#distlock-refresh').dataset.seconds = '0.2';"
                 "document.querySelector('#result_list').marked = true")  # fmt: skip
        # where one is, and what one chose, stays
        page.click("tr:nth-child(2) input.action-select")
        page.click("#distlock-refresh")
        state = "return [document.activeElement.href, ...Array.from("
        state += "document.querySelectorAll('input.action-select:checked'), box => box.value)]"
        before = page.run(f"document.querySelectorAll('th.field-name a')[1].focus(); {state}")
        page.until(lambda: page.run("return !document.querySelector('#result_list').marked"), "it was not refreshed")
        assert page.run(state) == before
        assert len(before) == 2
        # what comes is seen without a reload, and told
        with advisory_lock("fresh", using="memory"):
            page.until(lambda: "fresh" in page.names(), "the new lock is not seen")
            page.until(lambda: "eld locks" in page.text("#distlock-news"), "nothing is told")
            # a hidden tab asks for nothing
            page.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
                     "document.dispatchEvent(new Event('visibilitychange'))")  # fmt: skip
            assert requests_in(page, 600) == 0
            page.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
            page.until(lambda: requests_in(page, 300) > 0, "it did not go on")
            # remembered for this tab
            page.go(f"{LIST}?using=memory")
            assert page.get("#distlock-refresh", "ariaPressed") == "true"
            page.run("document.getElementById('distlock-refresh').dataset.seconds = '0.1'")
            page.click("#distlock-refresh")
            assert page.text("#distlock-news") == "The list is not refreshed any more."
        assert requests_in(page, 500) == 0
        assert "fresh" in page.names()


def test_axe_finds_nothing_serious_and_the_policy_is_kept(page: Page, settings: Any) -> None:
    with advisory_lock("cluster:rebalance", using="redis"), advisory_lock("beside", using="memory", shared=True):
        page.go(f"{LIST}?o=-mode.name&q=e")
        detail = page.get("th.field-name a", "href")
        page.driver.get_log("browser")
        faults = {}
        for url in (f"{page.url}{LIST}?o=-mode.name&q=e", detail, detail.replace("/change/", "/break/")):
            page.open(url)
            faults[url] = axe.faults(page.profile)
            page.profile.dark(True)
            faults[url] += axe.faults(page.profile, "color-contrast")
            page.profile.dark(False)
        assert not any(faults.values()), faults
        complaints = [entry["message"] for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert not complaints
        # from right to left; a date is read from its year on, also after a Persian word
        settings.LANGUAGE_CODE = "fa"
        page.go()
        assert page.get("html", "dir") == "rtl"
        assert axe.faults(page.profile) == []
        year, day, second = page.run(
            "const text = document.querySelector('.distlock-since time').firstChild, range = document.createRange();"
            "const left = at => { range.setStart(text, at); range.setEnd(text, at + 1);"
            " return range.getBoundingClientRect().left };"
            "return [left(0), left(9), left(18)]"
        )
        assert year < day < second


# --- the clothes of other packages, light and dark

# What is ours on a page; the rest is the theme's.
OURS = (".distlock-page", ".distlock-refresh", "#distlock-errors", ".distlock-list tbody")
# What axe says of a contrast that is too low; and what WCAG wants at least, of large text.
RATIO, SEEN = re.compile(r"color contrast of ([0-9.]+)"), 3.0


def serve(link: Link) -> None:
    """In a process of its own, as a theme cannot be added to one that runs: hold locks and serve their pages."""
    global urlpatterns
    urlpatterns = [path("admin/", admin.site.urls)]
    if apps.is_installed("grappelli"):
        urlpatterns.insert(0, path("grappelli/", include("grappelli.urls")))
    usual.ROOT_URLCONF = __name__
    with advisory_lock(NAME, using="leases", timeout=5), advisory_lock("prices", shared=True, timeout=5):
        server = LiveServer("127.0.0.1:0")
        link.say(server.url)
        link.hear()
        server.stop()


def faint(page: Page) -> list[str]:
    """Text that is hard to read; the colour of links is the theme's, which need only be seen."""
    present = [selector for selector in OURS if page.run("return !!document.querySelector(arguments[0])", selector)]
    ours = axe.faults(page.profile, "color-contrast", within=present, without=["a:not(.distlock-break)"])
    every = axe.faults(page.profile, "color-contrast", within=present)
    return ours + [fault for fault in every if float(RATIO.findall(fault)[0]) < SEEN]


@pytest.mark.parametrize("theme", ["unfold", "jazzmin", "grappelli"])
def test_in_a_theme_nothing_is_invisible(theme: str, tab: Tab) -> None:
    module = "tests.operations.admin.themed_settings"
    environment = {"DJANGO_SETTINGS_MODULE": module, "DISTLOCK_TEST_THEME": theme}
    found = {}
    with Child(serve, env=environment) as child, visit(tab, child.hear()) as page:
        page.go()
        assert NAME in page.names()
        assert page.text("#distlock-refresh") == "Refresh every 5 s"
        page.go(f"{LIST}?q=nightly")
        detail = page.get("th.field-name a", "href")
        for url in (page.url + LIST, detail, detail.replace("/change/", "/break/")):
            page.open(url)
            for dark in (True, False):
                page.profile.dark(dark)
                found[url, dark] = faint(page)
        child.say("end")
    assert not any(found.values()), found
