"""One server and two profiles of each browser, Ada's and Bo's; what they do, and what they see.

Chromium runs all cases; Firefox and WebKit those with the mark ``everywhere``, about what browsers do in ways of their
own: keys in read-only fields, pages that go and come back, storage of tabs, Web Locks, filled-in forms.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission

from django_distlock.editing import saving
from django_distlock.editing.http import beats
from testproject.articles.models import Article
from testproject.people import person as user_of
from tests.editing.store.desks import emptied
from tests.support import browsers
from tests.support.browsers import pytest_generate_tests, server
from tests.support.wire import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.browsers import Profile, Tab

__all__ = ["pytest_generate_tests", "server"]
# Seconds; short, so that a test can wait until a lease ends.
TIMES = {"TTL": 4, "BEAT": 0.75, "IDLE": 900}
RESERVED = 1.0  # for the tab that has left or saved; 5 in reality


class Person(browsers.Person):
    """Logged in."""

    def __init__(self, profile: Profile, url: str, slug: str) -> None:
        super().__init__(profile, url, slug)
        self.log_in(self.home)

    def log_in(self, tab: Tab, url: str = "") -> None:
        tab.open(f"{url or self.url}/articles/")
        tab.follow(lambda: tab.click(f"[formaction='/be/{self.slug}/']"))
        assert tab.text("#me") == self.slug.title()

    def open(self, path: str) -> Tab:
        tab = self.profile.tab()
        self.opened(tab, path)
        return tab

    @contextmanager
    def allowed(self, codename: str) -> Iterator[None]:
        """With a permission more."""
        permissions = user_of(self.slug).user_permissions
        permission = Permission.objects.get(codename=codename)
        permissions.add(permission)
        try:
            yield
        finally:
            permissions.remove(permission)


@pytest.fixture(scope="package")
def people(request: pytest.FixtureRequest, server: str) -> Iterator[list[Person]]:
    with ExitStack() as stack:
        yield [Person(stack.enter_context(browsers.browser(request.param)), server, slug) for slug in ("ada", "bo")]


@pytest.fixture
def ada(people: list[Person], times: None) -> Iterator[Person]:
    yield people[0]
    people[0].close_tabs()


@pytest.fixture
def bo(people: list[Person], times: None) -> Iterator[Person]:
    yield people[1]
    people[1].close_tabs()


@pytest.fixture
def times(databases: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.DISTLOCK_EDITING = dict(TIMES)
    monkeypatch.setattr(beats, "RESERVED", RESERVED)
    monkeypatch.setattr(saving, "RESERVED", RESERVED)
    yield
    wire.clear()


@pytest.fixture
def article(databases: None) -> Iterator[Article]:
    for _ in emptied("default"):
        yield Article.objects.create(title="A bridge opens", body="On Saturday.")


@pytest.fixture
def path(article: Article) -> str:
    return f"/articles/{article.pk}/"


@pytest.fixture
def admin(article: Article) -> str:
    return f"/admin/articles/article/{article.pk}/change/"


@pytest.fixture
def saved(article: Article) -> Callable[[], str]:
    """The body in the database."""
    return lambda: Article.objects.values_list("body", flat=True).get(pk=article.pk)
