"""The pages in a real browser, with locks that other processes hold and wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.utils import timezone
from selenium.webdriver import Keys

from django_distlock.operations.admin.rows import LockRows
from django_distlock.operations.history import Event, plot
from tests.operations.admin.pages import address, row_of
from tests.operations.admin.people import LIST
from tests.operations.admin.scene import BESIDE, SCENE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.operations.admin.rows import LockRow
    from tests.operations.admin.browsing import Page
    from tests.operations.admin.scene import Scene
    from tests.support.processes import Servant

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up
OTHER_PAGE = ".paginator a:not([aria-current])"  # Django 6 has a link to the one that is shown, too
# Servers know the locks of other tests too, whose processes were killed perhaps.
OURS = {name for _using, name, _waiters in SCENE} | {BESIDE}


def ours(page: Page) -> list[str]:
    return [name for name in page.names() if name in OURS]


def test_names_holders_ages_and_waiters_are_there(page: Page, whole_scene: Scene) -> None:
    """Of another process: where the server knows hashes only, the names are those that it has written down."""
    page.open()
    rows = page.rows()
    found = {row["name"]: row for row in rows if row["name"] in OURS}
    assert set(found) == OURS
    for using, name, waiters in SCENE:
        row = found[name]
        assert (row["backend"], row["mode"], row["waiters"]) == (using, "exclusive", str(waiters)), row
        assert f":{whole_scene.holder.pid}:MainThread" in row["holder"]
        assert " s\nsince 2" in row["held_since"]
        if using not in ("postgres", "mysql"):  # there are no fences
            assert int(row["fence"]) > 0
    assert page.find(".paginator").text.split()[-3:] == [str(len(rows)), "held", "locks"]
    # search, filter, sort
    page.find("#searchbar").send_keys("INVOICE:4711")
    page.follow(page.find("#changelist-search input[type=submit]"))
    assert page.names() == ["invoice:4711"]
    page.open(f"{LIST}?q=mail:newsletter&using=redis&waiters=yes")
    assert page.names() == ["mail:newsletter"]
    page.follow(page.find('#changelist-filter a[href*="waiters=no"]'))
    assert page.names() == []
    assert page.find("#distlock-none").text == "No held lock matches."
    page.open(f"{LIST}?o=3")
    assert ours(page)[0] == BESIDE  # nobody waits for it
    page.follow(page.find("th.column-waiters .toggle"))
    assert ours(page)[:2] == ["invoice:4711", "mail:newsletter"]
    assert page.find("th.column-waiters").get_attribute("aria-sort") == "descending"


@pytest.mark.parametrize("using", ["redis", "postgres", "mysql"])
def test_one_lock_and_breaking_it(page: Page, scene: Scene, holder: Servant, using: str) -> None:
    """To the lock, to the question, yes: the victim learns it while it holds, and the next in line gets the lock."""
    scene.altered = True  # only what is there of this alias
    name, waiters = next((name, waiters) for alias, name, waiters in SCENE if alias == using)
    before = row_of(using, name)
    if using == "redis":
        page.open(f"{LIST}?using={using}")
        page.follow(page.find("th.field-name a"))
    else:
        page.open(f"{address(before)}?_changelist_filters=using%3D{using}")
    assert page.find("h1").text == name
    shown = page.find("#content-main").text
    for fact in (before.info.holder, f"Key {before.info.key}", *before.info.waiting):
        assert fact in shown
    assert len(page.all(".distlock-waiting li")) == waiters
    page.follow(page.find("a.distlock-break"))
    assert page.find("h1").text == "Break this lock?"
    question = page.find(".distlock-facts").text
    for fact in (before.info.holder, *before.info.waiting):
        assert fact in question
    assert (BESIDE in question) == (using == "postgres")
    assert ("The whole database session is ended" in question) == (using != "redis")
    page.find("#distlock-reason").send_keys("hangs since noon")
    page.follow(page.find(".distlock-yes"))
    assert page.find(".messagelist .success").text.startswith(f"The lock “{name}” was broken.")
    assert page.driver.current_url.endswith(f"{LIST}?using={using}")  # back to where one came from
    # where there is a TTL, it is told at the next renewal, or when it lets go
    assert holder.do("let_go" if using == "redis" else "told", name) == "LockLost"
    entry = LogEntry.objects.get(object_repr=name)
    assert entry.user.username == "boss"
    assert "hangs since noon" in entry.change_message
    page.until(
        lambda: (found := next_holder(before)) is not None and found.info.waiters == waiters - 1, "nobody got it"
    )
    if using == "redis":
        page.open(address(before))
        assert page.find("h1").text == "This lock is no longer held"
        page.follow(page.find("#content-main ul a"))  # to whoever has it now
        assert page.find("h1").text == name


def next_holder(before: LockRow) -> LockRow | None:
    rows = LockRows().of(before.info.backend).rows
    return next((row for row in rows if row.place == before.place and row.pk != before.pk), None)


MANY = [f"batch {number:03}" for number in range(130)]


@pytest.fixture
def many(holder: Servant) -> Iterator[None]:
    """More locks than a page has rows."""
    assert holder.do("hold_many", "redis", MANY) == len(MANY)
    yield
    for name in MANY:
        holder.do("let_go", name)


def test_pages_with_a_search_and_a_sort(page: Page, many: None) -> None:
    """Both are kept from page to page, and over a lock and back."""
    page.open()
    page.find("#searchbar").send_keys("batch")
    page.follow(page.find("#changelist-search input[type=submit]"))
    page.follow(page.find("th.column-name a"))
    assert page.names() == MANY[:100]
    page.follow(page.find(OTHER_PAGE))
    assert page.names() == MANY[100:]
    assert page.find("#searchbar").get_attribute("value") == "batch"
    assert page.find("th.column-name").get_attribute("aria-sort") == "ascending"
    assert page.find(".paginator").text.split()[-3:] == ["130", "held", "locks"]
    # the other way round, which begins at the first page
    page.follow(page.find("th.column-name .toggle"))
    assert page.names() == MANY[:-101:-1]
    page.follow(page.find(OTHER_PAGE))
    assert page.names() == MANY[29::-1]
    # to a lock and back to the page where it was
    page.follow(page.find("tbody th.field-name a"))
    assert page.find("h1").text == MANY[29]
    page.follow(page.all("#content-main > p a")[-1])
    assert page.names() == MANY[29::-1]
    page.follow(page.find(OTHER_PAGE))
    assert page.names() == MANY[:-101:-1]
    page.driver.back()
    page.until(lambda: page.names() == MANY[29::-1], "back is not where it was")
    # a new search forgets the page, which it may not have
    page.find("#searchbar").send_keys(" 12")
    page.follow(page.find("#changelist-search input[type=submit]"))
    assert page.names() == [name for name in reversed(MANY) if " 12" in name]


def test_without_a_mouse(page: Page, holder: Servant) -> None:
    """From the list to the lock, to the question, and back to the list as it was."""
    names = [f"typed {letter}" for letter in "abc"]
    assert holder.do("hold_many", "redis", names) == len(names)
    page.open()
    page.tab_to("#searchbar")
    page.type("typed")
    page.arrive(lambda: page.type(Keys.ENTER))
    page.tab_to("th.column-name a")
    page.arrive(lambda: page.type(Keys.ENTER))
    assert page.names() == names
    listed = page.driver.current_url
    page.tab_to("th.field-name a", "typed b")
    page.arrive(lambda: page.type(Keys.ENTER))
    assert page.find("h1").text == "typed b"
    page.tab_to("a.distlock-break")
    page.arrive(lambda: page.type(Keys.ENTER))
    page.tab_to("#distlock-reason")
    page.type("by hand")
    page.tab_to(".distlock-yes")
    page.arrive(lambda: page.type(Keys.ENTER))
    assert page.find(".messagelist .success").text.startswith("The lock “typed b” was broken.")
    assert page.driver.current_url == listed
    assert page.names() == ["typed a", "typed c"]
    assert [holder.do("let_go", name) for name in names] == ["released", "LockLost", "released"]


def test_the_list_refreshes_itself_and_stops(page: Page, holder: Servant) -> None:
    page.open()
    toggle = page.find("#distlock-refresh")
    assert toggle.get_attribute("aria-pressed") == "false"
    page.run("arguments[0].dataset.seconds = '0.2'; document.querySelector('#result_list').marked = true", toggle)
    # where one is, and what one chose, stays
    box = page.find("tr:nth-child(2) input.action-select")
    chosen = box.get_attribute("value")
    box.click()
    # the first refresh says something else soon after
    page.run(
        "const news = document.querySelector('#distlock-news'); window.said = [];"
        "new MutationObserver(() => window.said.push(news.textContent)).observe(news, {childList: true})"
    )
    toggle.click()
    said = page.until(lambda: page.run("return window.said"), "nothing is said")
    assert said[0] == "The list is refreshed every 5 seconds."
    page.run("document.querySelectorAll('th.field-name a')[1].focus(); window.scrollTo(0, 60)")
    focused, scrolled = page.run("return [document.activeElement.href, window.scrollY]")
    page.until(lambda: page.run("return !document.querySelector('#result_list').marked"), "it was not refreshed")
    assert page.run("return [document.activeElement.href, window.scrollY]") == [focused, scrolled]
    checked = "return Array.from(document.querySelectorAll('input.action-select:checked'), box => box.value)"
    assert page.run(checked) == [chosen]
    assert page.find(".action-counter").text.startswith("1 of ")
    # what comes is seen without a reload, and told
    holder.do("hold", "redis", "fresh")
    page.until(lambda: "fresh" in page.names(), "the new lock is not seen")
    page.until(lambda: "held locks" in page.find("#distlock-news").text, "nothing is told")
    # a hidden tab asks for nothing
    page.run("Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
             "document.dispatchEvent(new Event('visibilitychange'))")  # fmt: skip
    assert requests_in(page, 600) == 0
    page.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
    page.until(lambda: requests_in(page, 300) > 0, "it did not go on")
    # remembered for this tab
    page.open()
    assert page.find("#distlock-refresh").get_attribute("aria-pressed") == "true"
    page.run("document.getElementById('distlock-refresh').dataset.seconds = '0.1'")
    page.find("#distlock-refresh").click()
    assert page.find("#distlock-news").text == "The list is not refreshed any more."
    assert holder.do("let_go", "fresh") == "released"
    assert requests_in(page, 500) == 0
    assert "fresh" in page.names()


def requests_in(page: Page, milliseconds: int) -> int:
    """How often the page begins to ask for itself in that time; what is under way may end late."""
    return page.driver.execute_async_script(
        "const done = arguments[1], send = window.fetch; let begun = 0;"
        "window.fetch = (...asked) => { begun += 1; return send(...asked); };"
        "setTimeout(() => { window.fetch = send; done(begun); }, arguments[0])",
        milliseconds,
    )


def test_axe_finds_nothing_serious_and_the_policy_is_kept(page: Page) -> None:
    row = row_of("zookeeper", "cluster:rebalance")
    page.driver.get_log("browser")
    faults = {}
    for path in (f"{LIST}?o=-5.1&mode=exclusive&q=e", address(row), address(row, "break")):
        page.open(path)
        faults[path] = page.faults()
        page.dark(True)
        faults[path] += page.faults("color-contrast")
        page.dark(False)
    assert not any(faults.values()), faults
    complaints = [entry["message"] for entry in page.driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not complaints


def test_from_right_to_left(page: Page, settings: Any) -> None:
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
