"""One server and two profiles of each browser: Ada's and Bo's."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from pytest_django.live_server_helper import LiveServer

from testproject.articles.models import Article
from tests.support.browsers import BROWSERS, Profile, Tab, browser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Seconds; short, so that a test can wait until a lease ends.
TIMES = {"TTL": 6, "BEAT": 2, "IDLE": 900}
BANNER = ".distlock-banner"


class Person:
    """A user with a browser profile."""

    def __init__(self, profile: Profile, url: str, slug: str) -> None:
        self.profile, self.url, self.slug = profile, url, slug
        self.name = slug.title()
        self.tabs: list[Tab] = []

    def log_in(self) -> None:
        tab = self.profile.tab(f"{self.url}/articles/")
        tab.follow(lambda: tab.click(f"[formaction='/articles/as/{self.slug}/']"))
        assert tab.text("#me") == self.name
        self.home = tab

    def open(self, path: str) -> Tab:
        tab = self.profile.tab(self.url + path)
        self.tabs.append(tab)
        return tab

    def edit(self, article: Article) -> Tab:
        return self.open(f"/articles/{article.pk}/")

    def close_tabs(self) -> None:
        for tab in self.tabs:
            try:
                tab.close()
            except Exception:  # noqa: S110 - a test may have closed it
                pass
        self.tabs.clear()


@contextmanager
def person(name: str, url: str, slug: str) -> Iterator[Person]:
    with browser(name) as profile:
        made = Person(profile, url, slug)
        made.log_in()
        yield made


@pytest.fixture(scope="module")
def server(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    with django_db_blocker.unblock():
        live = LiveServer("127.0.0.1:0")
        try:
            yield live.url
        finally:
            live.stop()
            connections.close_all()


@pytest.fixture(scope="module", params=BROWSERS)
def people(request: pytest.FixtureRequest, server: str) -> Iterator[tuple[Person, Person]]:
    with ExitStack() as stack:
        yield (
            stack.enter_context(person(request.param, server, "ada")),
            stack.enter_context(person(request.param, server, "bo")),
        )


@pytest.fixture
def ada(people: tuple[Person, Person], times: None) -> Iterator[Person]:
    yield people[0]
    people[0].close_tabs()


@pytest.fixture
def bo(people: tuple[Person, Person], times: None) -> Iterator[Person]:
    yield people[1]
    people[1].close_tabs()


@pytest.fixture
def times(databases: None, settings: Any) -> None:
    settings.DISTLOCK_EDITING = dict(TIMES)


@pytest.fixture
def article(databases: None) -> Iterator[Article]:
    made = Article.objects.create(title="A bridge opens", body="On Saturday.")
    yield made
    Article.objects.filter(pk=made.pk).delete()


@pytest.fixture
def saved(article: Article) -> Callable[[], str]:
    """The body in the database."""
    return lambda: Article.objects.values_list("body", flat=True).get(pk=article.pk)
