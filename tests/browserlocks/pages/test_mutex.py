"""The mutex on shared memory: nobody is lost, nobody waits in vain, and workers end at any moment; see mutex.js."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support.browsers import OTHER_NAME

if TYPE_CHECKING:
    from .conftest import Person, Room

pytestmark = pytest.mark.tier2
CREATE = "import('/distlock-worker.js').then(({ WorkerMutex }) => WorkerMutex.create())"


def result(tab: Room, promise: str) -> str:
    """Of JavaScript: "" or the error."""
    end = "(error) => (window.result = `${error.name}: ${error.message}`)"
    tab.run(f"window.result = null; {promise}.then(() => (window.result = 'fine'), {end})")
    said: str = tab.until(lambda: tab.run("return window.result"), "no answer", 90)  # eight workers on a busy machine
    return said.removeprefix("fine")


def passes(ada: Person, case: str) -> None:
    assert result(ada.open("/isolated/"), f"import('/mutex.js').then(({{ cases }}) => cases.{case}())") == ""


@pytest.mark.everywhere
@pytest.mark.parametrize(
    "case",
    [
        "eight_workers_lose_no_increment",
        "a_worker_that_is_terminated_inside_gives_the_mutex_back",
        "the_mutex_is_not_given_away_while_an_ended_worker_still_runs",
        "workers_end_at_any_moment",
        "a_script_without_its_header_is_found",
    ],
)
def test_in_every_browser(ada: Person, case: str) -> None:
    passes(ada, case)


@pytest.mark.parametrize(
    "case",
    [
        "a_worker_waits_no_longer_than_it_says",
        "the_mutex_is_handed_over_in_the_order_of_asking",
        "wrong_use_is_an_error_and_no_deadlock",
        "a_promise_is_awaited_inside_the_section",
        "there_are_as_many_places_as_were_asked_for",
        "a_page_waits_without_blocking",
        "tasks_of_a_page_take_turns_with_workers",
        "a_page_gives_up_waiting",
    ],
)
def test_in_one_browser(ada: Person, case: str) -> None:
    passes(ada, case)


@pytest.mark.parametrize("query", ["embedder=unsafe-none", "opener=unsafe-none"])
def test_a_page_that_may_not_share_memory_names_the_cure(ada: Person, query: str) -> None:
    said = result(ada.open(f"/isolated/?{query}"), CREATE)
    assert said.startswith("IsolationError: This page may not share memory with workers.")
    for header in ("Opener-Policy: same-origin", "Embedder-Policy: require-corp"):
        assert f"Cross-Origin-{header}" in said
    assert "SECURE_CROSS_ORIGIN_OPENER_POLICY" in said


def test_a_browser_without_shared_memory(ada: Person) -> None:
    """GTK's MiniBrowser says that a page is isolated and has none; and pages by http have none on a LAN."""
    tab = ada.open("/isolated/")
    assert "This browser shares no memory" in result(tab, f"delete globalThis.SharedArrayBuffer; {CREATE}")
    tab.open(f"http://{OTHER_NAME}:{urlsplit(ada.url).port}/isolated/")
    assert "secure contexts only: serve this page over HTTPS" in result(tab, CREATE)
