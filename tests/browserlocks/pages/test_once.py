"""``data-distlock-once`` in browsers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from . import site

if TYPE_CHECKING:
    from .conftest import Person, Room

pytestmark = pytest.mark.tier2
TWICE = "const button = document.querySelector('button'); button.click(); button.click()"


def counted(tab: Room) -> list[int]:
    """How many submits have passed, and how many were blocked."""
    found: list[int] = tab.run("return [window.passed, window.blocked]")
    return found


def form(person: Person, query: str = "") -> Room:
    tab = person.open(f"/form/?{query}")
    tab.ready()
    return tab


@pytest.mark.everywhere
def test_a_double_click_posts_once_with_the_value_of_its_button(ada: Person) -> None:
    """Nor does a click while the answer is under way; when the page comes back, the form can be sent again."""
    tab = form(ada)
    later = "setTimeout(() => document.querySelector('button').click(), 200)"
    tab.follow(lambda: tab.run(f"{TWICE}; {later}"))
    assert tab.text("p") == "Paid"
    assert site.posts == ["pay"]
    tab.back()
    tab.ready()
    tab.follow(lambda: tab.run(TWICE))
    assert site.posts == ["pay", "pay"]


def test_a_script_that_sends_the_form_blocks_it_while_it_is_busy(ada: Person) -> None:
    tab = form(ada, "prevent=fetch")
    tab.run(TWICE)
    assert tab.run("return document.querySelectorAll(':disabled').length") == 0
    tab.until(lambda: not tab.run("return document.forms[0].hasAttribute('aria-busy')"), "it is still busy")
    assert site.posts == ["pay"]
    tab.run("document.forms[0].setAttribute('aria-busy', 'true')")
    time.sleep(1.1)
    tab.run(TWICE)
    tab.run("document.forms[0].removeAttribute('aria-busy'); document.forms[0].classList.add('htmx-request')")
    tab.run(TWICE)
    assert counted(tab) == [1, 5]
    tab.run("document.forms[0].classList.remove('htmx-request')")
    tab.run(TWICE)
    tab.until(lambda: site.posts == ["pay", "pay"], "it was not sent again")


EMPTY = """
const empty = Object.assign(document.createElement("input"), { type: "hidden", name: "empty", value: "1" });
document.forms[0].append(empty);
"""
ELSEWHERE = """
document.body.append(Object.assign(document.createElement("iframe"), { name: "elsewhere" }));
document.forms[0].target = "elsewhere";
"""


@pytest.mark.parametrize(
    ("query", "script", "posts"),
    [
        ("seconds=2", EMPTY, ["pay", "pay"]),  # 204, as after a download: the attribute says when it can be sent again
        ("", ELSEWHERE, ["pay", "pay"]),  # the answer goes to another window
        ("prevent=check", "", []),  # a check has refused the form
    ],
)
def test_a_page_that_stays_where_it_is(ada: Person, query: str, script: str, posts: list[str]) -> None:
    """The form can be sent again after a second."""
    tab = form(ada, query)
    tab.run(script)
    tab.run(TWICE)
    assert counted(tab) == [1, 1]
    time.sleep(2.1)
    tab.run(TWICE)
    assert counted(tab) == [2, 2]
    tab.until(lambda: site.posts == posts, "it was not sent again")
