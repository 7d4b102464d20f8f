"""The pages in a real browser, with locks that other processes hold and wait for."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone

from django_distlock import advisory_lock, held_locks
from django_distlock.operations.history import Event, plot
from tests.conftest import eventually
from tests.operations.admin.pages import LIST
from tests.operations.programs import hold, wait
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.operations.admin.browsing import Page

pytestmark = pytest.mark.tier2


@pytest.mark.parametrize("using", ["redis", "postgres"])
def test_from_the_list_to_a_broken_lock(page: Page, using: str) -> None:
    """To the lock, to the question, yes: the victim is told, and the next in line gets the lock."""
    token = uuid.uuid4().hex  # a lease of another test may not have ended yet, whose name has the number of the process
    name, beside = (f"{each}:{token}" for each in ("invoice", "beside"))
    with Child(hold, using, name, beside) as victim:
        assert victim.hear() == "held"
        with Child(wait, using, name) as waiter:

            def seen() -> bool:
                """Where the server knows only hashes of names, the holder writes them down."""
                infos = [info for info in held_locks(using)[0].locks if info.name in (name, beside)]
                return sorted((info.waiters, f":{victim.pid}:" in (info.holder or "")) for info in infos) == [
                    (0, True),
                    (1, True),
                ]

            eventually(seen, "it is not seen")
            page.open(f"{LIST}?using={using}")
            page.find("#searchbar").send_keys(token)
            page.follow(page.find("#changelist-search input[type=submit]"))
            page.follow(page.find("th.column-waiters a"))
            assert page.names() == [beside, name]  # nobody waits for the first one
            page.follow(page.find("th.column-waiters .toggle"))
            assert page.find("th.column-waiters").get_attribute("aria-sort") == "descending"
            listed = page.driver.current_url
            page.follow(page.find("th.field-name a"))
            assert page.find("h1").text == name
            assert len(page.all(".distlock-waiting li")) == 1
            detail = page.driver.current_url
            page.follow(page.find("a.distlock-break"))
            assert page.find("h1").text == "Break this lock?"
            assert (beside in page.find(".distlock-facts").text) == (using == "postgres")
            page.find("#distlock-reason").send_keys("hangs since noon")
            page.follow(page.find(".distlock-yes"))
            assert page.find(".messagelist .success").text.startswith(f"The lock “{name}” was broken.")
            assert page.driver.current_url == listed
            assert "hangs since noon" in LogEntry.objects.get(object_repr=name).change_message
            assert waiter.hear() == "it is mine"
            page.driver.get(detail)
            assert page.find("h1").text == "This lock is no longer held"
            waiter.say()
        victim.say()
        assert victim.hear() == ["LockLost", "LockLost" if using == "postgres" else "released"]


def test_the_list_refreshes_itself_and_stops(page: Page) -> None:
    with ExitStack() as stack:
        for number in range(2):
            stack.enter_context(advisory_lock(f"old {number}", using="memory"))
        page.open(f"{LIST}?using=memory")
        toggle = page.find("#distlock-refresh")
        assert toggle.get_attribute("aria-pressed") == "false"
        page.run("arguments[0].dataset.seconds = '0.2'; document.querySelector('#result_list').marked = true", toggle)
        # where one is, and what one chose, stays
        box = page.find("tr:nth-child(2) input.action-select")
        chosen = box.get_attribute("value")
        box.click()
        toggle.click()
        page.run("document.querySelectorAll('th.field-name a')[1].focus()")
        focused = page.run("return document.activeElement.href")
        page.until(lambda: page.run("return !document.querySelector('#result_list').marked"), "it was not refreshed")
        assert page.run("return document.activeElement.href") == focused
        checked = "return Array.from(document.querySelectorAll('input.action-select:checked'), box => box.value)"
        assert page.run(checked) == [chosen]
        # what comes is seen without a reload, and told
        with advisory_lock("fresh", using="memory"):
            page.until(lambda: "fresh" in page.names(), "the new lock is not seen")
            page.until(lambda: "eld locks" in page.find("#distlock-news").text, "nothing is told")
            # a hidden tab asks for nothing
            page.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
                     "document.dispatchEvent(new Event('visibilitychange'))")  # fmt: skip
            assert requests_in(page, 600) == 0
            page.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
            page.until(lambda: requests_in(page, 300) > 0, "it did not go on")
            # remembered for this tab
            page.open(f"{LIST}?using=memory")
            assert page.find("#distlock-refresh").get_attribute("aria-pressed") == "true"
            page.run("document.getElementById('distlock-refresh').dataset.seconds = '0.1'")
            page.find("#distlock-refresh").click()
            assert page.find("#distlock-news").text == "The list is not refreshed any more."
        assert requests_in(page, 500) == 0
        assert "fresh" in page.names()


def requests_in(page: Page, milliseconds: int) -> int:
    """How often the page begins to ask for itself in that time; what is under way may end late."""
    found: int = page.driver.execute_async_script(
        "const done = arguments[1], send = window.fetch; let begun = 0;"
        "window.fetch = (...asked) => { begun += 1; return send(...asked); };"
        "setTimeout(() => { window.fetch = send; done(begun); }, arguments[0])",
        milliseconds,
    )
    return found


def test_axe_finds_nothing_serious_and_the_policy_is_kept(page: Page, settings: Any) -> None:
    with advisory_lock("cluster:rebalance", using="redis"), advisory_lock("beside", using="memory", shared=True):
        page.open(f"{LIST}?o=-5.1&q=e")
        detail = page.find("th.field-name a").get_attribute("href").removeprefix(page.url)
        page.driver.get_log("browser")
        faults = {}
        for path in (f"{LIST}?o=-5.1&q=e", detail, detail.replace("/change/", "/break/")):
            page.open(path)
            faults[path] = page.faults()
            page.dark(True)
            faults[path] += page.faults("color-contrast")
            page.dark(False)
        assert not any(faults.values()), faults
        complaints = [entry["message"] for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert not complaints
        # from right to left
        settings.LANGUAGE_CODE = "fa"
        page.open()
        assert page.find("html").get_attribute("dir") == "rtl"
        assert page.faults() == []
        # a date is read from its year on, also after a Persian word
        year, day, second = page.run(
            "const text = document.querySelector('.distlock-since time').firstChild, range = document.createRange();"
            "const left = at => { range.setStart(text, at); range.setEnd(text, at + 1);"
            " return range.getBoundingClientRect().left };"
            "return [left(0), left(9), left(18)]"
        )
        assert year < day < second
    # and the labels of the history stay beside its axis
    event = Event(kind="released", name="a", using="default", at=timezone.now(), wait=None, hold=2.0)
    ends, axis = page.run(
        "document.body.insertAdjacentHTML('beforeend', arguments[0]);"
        "const plot = document.querySelector('svg.distlock-plot'), right = each => each.getBoundingClientRect().right;"
        "return [Math.max(...[...plot.querySelectorAll('text')].map(right)),"
        " plot.querySelector('path').getBoundingClientRect().left]",
        plot([event]),
    )
    assert ends <= axis
