"""One server and two profiles of each browser, Ada's and Bo's, at the site of this folder."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings
from django.urls import clear_url_caches
from pytest_django.live_server_helper import LiveServer

from tests.browserlocks.http.people import holder_of, make_person, remove_people
from tests.browserlocks.ledger import ledger
from tests.support.browsers import Profile, Tab, browser, in_browsers
from tests.support.wire import wire

from . import site

if TYPE_CHECKING:
    from collections.abc import Iterator

TTL = 4.0  # seconds; short, so that a test can wait until a lease ends


class Room(Tab):
    """A tab at the room; see room.js."""

    def take(self, who: str, **options: Any) -> None:
        """Begin a section."""
        self.run("take(arguments[0], arguments[1])", who, options)

    def hold(self, who: str, **options: Any) -> Room:
        """Begin a section, and be in it."""
        self.take(who, **options)
        self.until_state(who, "held")
        return self

    def wait(self, who: str) -> Room:
        """Begin a section, and have a place in the queue of the server: a later request comes after it."""
        self.take(who)
        pending = "locks.query().then(({pending}) => arguments[0](pending.some(({place}) => place !== null)))"
        self.until(lambda: self.state(who) == "waiting" and self.ask(pending), lambda: f"{who}: {self.about(who)}")
        return self

    def finish(self, who: str) -> None:
        self.run("finish(arguments[0])", who)

    def state(self, who: str) -> str:
        return str(self.run("return sections[arguments[0]]?.state", who))

    def until_state(self, who: str, state: str, patience: float = 20) -> None:
        self.until(
            lambda: self.state(who) == state,
            lambda: (  # the ledger of a server in another process is not this one
                f"{who} is not {state!r} but {self.about(who)!r}; entered have {ledger.order}, "
                f"and the cart has {holder_of('cart')!r}"
            ),
            patience,
        )

    def until_end(self, who: str, end: str) -> None:
        self.until(
            lambda: self.run("return sections[arguments[0]]?.end", who) == end,
            lambda: f"{who} has not {end!r} but {self.about(who)!r}",
        )

    def about(self, who: str) -> Any:
        return self.run("const {state, end, message} = sections[arguments[0]] ?? {}; return {state, end, message}", who)

    def ask(self, script: str, *arguments: Any) -> Any:
        """A script that calls its last argument with its answer."""
        self._front()
        return self.profile.execute_async_script(script, *arguments)

    def ready(self) -> None:
        self.until(lambda: self.run("return window.ready === true"), "the script does not run")

    def leave(self) -> None:
        """By a link, so that "back" leads here again."""
        self.run("document.querySelector('a').click()")
        self.until(lambda: self.text("p") == "Elsewhere", "it has not gone")


class Person:
    """A user with a browser profile."""

    def __init__(self, profile: Profile, url: str, slug: str) -> None:
        self.profile, self.url, self.slug = profile, url, slug
        self.tabs: list[Tab] = []
        self.home = profile.tab()

    def log_in(self) -> None:
        self.home.open(f"{self.url}/as/{self.slug}/")
        assert self.home.text("#me") == self.slug

    def open(self, path: str) -> Room:
        tab = Room(self.profile, self.profile.new_tab())
        tab.open(self.url + path)
        self.tabs.append(tab)
        return tab

    def room(self, query: str = "", name: str = "cart") -> Room:
        tab = self.open(f"/room/?name={name}&{query}")
        tab.ready()
        return tab

    def close_tabs(self) -> None:
        for tab in self.tabs:
            with suppress(Exception):  # a test may have closed it
                tab.close()
        self.tabs.clear()


# Of the package: each browser starts once for all modules.
@pytest.fixture(scope="package")
def server(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    middleware = ["tests.support.wire.middleware", *settings.MIDDLEWARE]
    with django_db_blocker.unblock():
        with override_settings(MIDDLEWARE=middleware):  # read once, when the server starts
            live = LiveServer("127.0.0.1:0")
        try:
            yield live.url
        finally:
            live.stop()
            connections.close_all()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    in_browsers(metafunc, "people")


@pytest.fixture(scope="package")
def people(request: pytest.FixtureRequest, server: str) -> Iterator[list[Person]]:
    with ExitStack() as stack:
        yield [Person(stack.enter_context(browser(request.param)), server, slug) for slug in ("ada", "bo")]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The browser."""
    return str(request.node.callspec.params["people"])


@pytest.fixture
def crew(databases: None, settings: Any) -> Iterator[None]:
    settings.ROOT_URLCONF = "tests.browserlocks.pages.site"
    settings.DISTLOCK_BROWSER = {"TTL": TTL}
    clear_url_caches()
    remove_people()
    make_person("ada")
    make_person("bo")
    yield
    wire.clear()
    ledger.clear()
    site.posts.clear()
    remove_people()
    clear_url_caches()


@pytest.fixture
def ada(people: list[Person], crew: None) -> Iterator[Person]:
    people[0].log_in()
    yield people[0]
    people[0].close_tabs()


@pytest.fixture
def bo(people: list[Person], crew: None) -> Iterator[Person]:
    people[1].log_in()
    yield people[1]
    people[1].close_tabs()
