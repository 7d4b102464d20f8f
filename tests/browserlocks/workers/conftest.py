"""Each browser starts once, with one tab on a site that needs no Django."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.browsers import Tab, browser, in_browsers

from .site import HERE, site

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE = 90.0  # seconds, for eight workers on a busy machine
RUN = """
window.answer = null;
const table = window.table;
(async () => { %s })().then(
  (value) => { window.answer = { value }; },
  (error) => { window.answer = { error: `${error.name}: ${error.message}` }; },
);
"""


class Table:
    """The tab in which the hands work."""

    def __init__(self, tab: Tab, url: str) -> None:
        self.tab, self.url = tab, url

    def ask(self, code: str) -> Any:
        """Run JavaScript that may wait; what it returns. An exception is a failure of the test."""
        answer = self.answer(code)
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    def error(self, code: str) -> str:
        return str(self.answer(code)["error"])

    def answer(self, code: str) -> dict[str, Any]:
        self.tab.run(RUN % code)
        self.tab.until(lambda: self.tab.run("return window.answer"), f"no answer to {code}", PATIENCE)
        found: dict[str, Any] = self.tab.run("return window.answer")
        return found

    def open(self, path: str) -> None:
        self.tab.open(self.url + path)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    in_browsers(metafunc, "opened")


@pytest.fixture(scope="package")
def opened(request: pytest.FixtureRequest) -> Iterator[Table]:
    with pytest.MonkeyPatch.context() as patch, site() as url:
        # GTK's MiniBrowser honours the headers and hides the memory all the same; Safari shows it
        patch.setenv("JSC_useSharedArrayBuffer", "1")
        with browser(request.param) as profile:
            yield Table(profile.tab(f"{url}/isolated/"), url)


@pytest.fixture
def table(opened: Table) -> Table:
    """A page that is isolated, with a new mutex and no hands."""
    opened.open("/isolated/")
    opened.ask((HERE / "page.js").read_text())
    return opened
