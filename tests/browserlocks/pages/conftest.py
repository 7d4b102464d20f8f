"""One server and two profiles of each browser, Ada's and Bo's."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from tests.browserlocks import site
from tests.browserlocks.ledger import ledger
from tests.support import browsers
from tests.support.browsers import Tab, pytest_generate_tests, server
from tests.support.wire import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["pytest_generate_tests", "server"]
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
        self.until(lambda: self.state(who) == "waiting" and self.has_a_place(), lambda: f"{who}: {self.about(who)}")
        return self

    def has_a_place(self) -> bool:
        pending = "locks.query().then(({pending}) => arguments[0](pending.some(({place}) => place !== null)))"
        return bool(self.ask(pending))

    def finish(self, who: str) -> None:
        self.run("finish(arguments[0])", who)

    def state(self, who: str) -> str:
        return str(self.about(who).get("state"))

    def about(self, who: str) -> Any:
        names = "{state, end, message, heldAt, lostAt}"
        return self.run(f"const {names} = sections[arguments[0]] ?? {{}}; return {names}", who)

    def until_state(self, who: str, state: str) -> None:
        self.until(
            lambda: self.state(who) == state,
            lambda: f"{who} is not {state!r} but {self.about(who)!r}; entered have {ledger.entered}",
        )

    def until_end(self, who: str, end: str) -> None:
        self.until(lambda: self.about(who).get("end") == end, lambda: f"{who} has not {end!r} but {self.about(who)!r}")

    def ask(self, script: str, *arguments: Any) -> Any:
        """A script that calls its last argument with its answer."""
        self._front()
        return self.profile.execute_async_script(script, *arguments)

    def ready(self) -> Room:
        self.until(lambda: self.run("return window.ready === true"), "the script does not run")
        return self

    def leave(self) -> None:
        """By a link, so that "back" leads here again."""
        self.run("document.querySelector('a').click()")
        self.until(lambda: self.text("p") == "Elsewhere", "it has not gone")

    def back_again(self) -> bool:
        """Go back to the room. Was the page kept in memory?"""
        self.back()
        return bool(self.ready().run("return window.persisted"))


class Person(browsers.Person):
    def log_in(self) -> None:
        self.home.open(f"{self.url}/as/{self.slug}/")
        assert self.home.text("#me") == self.slug

    def open(self, path: str) -> Room:
        tab = Room(self.profile, self.profile.new_tab())
        self.opened(tab, path)
        return tab

    def room(self, query: str = "", name: str = "cart") -> Room:
        return self.open(f"/room/?name={name}&{query}").ready()


@pytest.fixture(scope="package")
def people(request: pytest.FixtureRequest, server: str) -> Iterator[list[Person]]:
    # GTK's MiniBrowser honours the headers of isolation and hides the shared memory all the same; Safari shows it
    with ExitStack() as stack, mock.patch.dict(os.environ, JSC_useSharedArrayBuffer="1"):
        yield [Person(stack.enter_context(browsers.browser(request.param)), server, slug) for slug in ("ada", "bo")]


@pytest.fixture
def here(people: list[Person], crew: Any, settings: Any) -> Iterator[list[Person]]:
    """Both are logged in."""
    settings.DISTLOCK_BROWSER = {"TTL": TTL}
    for person in people:
        person.log_in()
    yield people
    for person in people:
        person.close_tabs()
    wire.clear()
    ledger.clear()
    site.posts.clear()


@pytest.fixture
def ada(here: list[Person]) -> Person:
    return here[0]


@pytest.fixture
def bo(here: list[Person]) -> Person:
    return here[1]
