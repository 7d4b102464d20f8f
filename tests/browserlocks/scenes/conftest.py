"""The demo's own server, and people with browsers in front of it. The pages send a strict policy themselves."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from tests.scenarios.camera import demo
from tests.support.browsers import BROWSERS, Profile, Tab, browser
from tests.support.sizes import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Person:
    """A user with a browser profile."""

    def __init__(self, profile: Profile, url: str, slug: str) -> None:
        self.profile, self.url = profile, url
        self.tabs: list[Tab] = []
        self.home = profile.tab(f"{url}/board/")
        self.home.follow(lambda: self.home.click(f"[formaction$='/{slug}/']"))

    def open(self, path: str) -> Tab:
        tab = self.profile.tab(self.url + path)
        self.tabs.append(tab)
        return tab

    def close_tabs(self) -> None:
        for tab in self.tabs:
            tab.close()
        self.tabs.clear()

    def close(self, tab: Tab) -> None:
        self.tabs.remove(tab)
        tab.close()


@pytest.fixture(scope="package")
def served() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JSC_useSharedArrayBuffer", "1")  # GTK's MiniBrowser hides shared memory
        with demo() as url:
            yield url


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "browsers" in metafunc.fixturenames:
        everywhere = LONG or metafunc.definition.get_closest_marker("alike") is None
        metafunc.parametrize("browsers", BROWSERS if everywhere else BROWSERS[:1], indirect=True, scope="package")


@pytest.fixture(scope="package")
def browsers(request: pytest.FixtureRequest, served: str) -> Iterator[tuple[Person, Person]]:
    """Ada's and Bo's."""
    with ExitStack() as stack:
        profiles = [stack.enter_context(browser(request.param)) for _ in range(2)]
        yield Person(profiles[0], served, "ada"), Person(profiles[1], served, "bo")


@pytest.fixture
def ada(browsers: tuple[Person, Person]) -> Iterator[Person]:
    yield browsers[0]
    browsers[0].close_tabs()


@pytest.fixture
def bo(browsers: tuple[Person, Person]) -> Iterator[Person]:
    yield browsers[1]
    browsers[1].close_tabs()


@pytest.fixture
def clean(browsers: Any) -> Callable[[Tab], None]:
    """Fails if the policy has forbidden anything, or a script has failed. Chromium has a log of it."""

    def check(tab: Tab) -> None:
        driver = getattr(tab.profile, "driver", None)
        if driver is not None and driver.capabilities["browserName"].startswith("chrome"):
            severe = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
            assert not [message for message in severe if "Failed to load resource" not in message]  # 409, 423

    return check
