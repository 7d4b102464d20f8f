"""``data-distlock-once`` in browsers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.browserlocks.site import posts

if TYPE_CHECKING:
    from .conftest import Person, Room

pytestmark = pytest.mark.tier2
TWICE = "const button = document.querySelector('button'); button.click(); button.click()"


def counted(tab: Room) -> list[int]:
    """How many submits have passed, and how many were blocked."""
    return list(tab.run("return [window.passed, window.blocked]"))


@pytest.mark.everywhere
def test_a_double_click_posts_once_with_the_value_of_its_button(ada: Person) -> None:
    """Nor does a click while the answer is under way; when the page comes back, the form can be sent again."""
    tab = ada.open("/form/").ready()
    tab.follow(lambda: tab.run(f"{TWICE}; setTimeout(() => document.querySelector('button').click(), 200)"))
    assert (tab.text("p"), posts) == ("Paid", ["pay"])
    tab.back()
    tab.ready().follow(lambda: tab.run(TWICE))
    assert posts == ["pay", "pay"]


def test_a_script_that_sends_the_form_blocks_it_while_it_is_busy(ada: Person) -> None:
    tab = ada.open("/form/?prevent=fetch").ready()
    tab.run(TWICE)
    assert tab.run("return document.querySelectorAll(':disabled').length") == 0
    tab.until(lambda: not tab.run("return document.forms[0].hasAttribute('aria-busy')"), "it is still busy")
    assert posts == ["pay"]
    tab.run("document.forms[0].setAttribute('aria-busy', 'true')")
    time.sleep(1.1)
    tab.run(TWICE)
    tab.run("document.forms[0].removeAttribute('aria-busy'); document.forms[0].classList.add('htmx-request')")
    tab.run(TWICE)
    assert counted(tab) == [1, 5]
    tab.run(f"document.forms[0].classList.remove('htmx-request'); {TWICE}")
    tab.until(lambda: posts == ["pay", "pay"], "it was not sent again")


EMPTY = "document.forms[0].insertAdjacentHTML('beforeend', '<input type=hidden name=empty value=1>')"
OTHER = "document.body.append(document.createElement('iframe')); frames[0].name = document.forms[0].target = 'other'"


@pytest.mark.parametrize(
    ("query", "script", "sent"),
    [
        ("seconds=2", EMPTY, 2),  # 204, as after a download: the attribute says when it can be sent again
        ("", OTHER, 2),  # the answer goes to another window
        ("prevent=check", "", 0),  # a check has refused the form
    ],
)
def test_a_page_that_stays_where_it_is(ada: Person, query: str, script: str, sent: int) -> None:
    """The form can be sent again after a second."""
    tab = ada.open(f"/form/?{query}").ready()
    tab.run(script)
    tab.run(TWICE)
    assert counted(tab) == [1, 1]
    time.sleep(2.1)
    tab.run(TWICE)
    assert counted(tab) == [2, 2]
    tab.until(lambda: posts == ["pay"] * sent, "it was not sent again")
