"""``data-distlock-once`` in Chromium, Firefox and WebKit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from . import site

if TYPE_CHECKING:
    from .conftest import Person, Room

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: six browsers
TWICE = "const button = document.querySelector('button'); button.click(); button.click()"


def counted(tab: Room) -> tuple[int, int]:
    """How many submits have passed, and how many were blocked."""
    passed, blocked = tab.run("return [window.passed, window.blocked]")
    return passed, blocked


def form(person: Person, query: str = "") -> Room:
    tab = person.open(f"/form/?{query}")
    tab.ready()
    return tab


def test_a_double_click_posts_once_with_the_value_of_its_button(ada: Person) -> None:
    tab = form(ada)
    tab.follow(lambda: tab.run(TWICE))
    assert tab.text("p") == "Paid"
    assert site.posts == ["pay"]


def test_a_click_while_the_answer_is_under_way_posts_nothing(ada: Person) -> None:
    tab = form(ada)
    tab.run("document.querySelector('button').click(); setTimeout(() => document.querySelector('button').click(), 200)")
    tab.until(lambda: tab.text("p") == "Paid", "the form was not sent")
    assert site.posts == ["pay"]


def test_the_form_can_be_sent_again_when_its_page_comes_back(ada: Person) -> None:
    tab = form(ada)
    tab.follow(lambda: tab.run(TWICE))
    tab.back()
    tab.ready()
    tab.follow(lambda: tab.run(TWICE))
    assert site.posts == ["pay", "pay"]


def test_the_button_stays_enabled(ada: Person) -> None:
    tab = form(ada, "prevent=check")
    tab.run(TWICE)
    assert tab.run("return document.querySelectorAll(':disabled').length") == 0
    assert counted(tab) == (1, 1)


@pytest.mark.alike
def test_a_check_that_refuses_the_form_costs_a_second(ada: Person) -> None:
    tab = form(ada, "prevent=check")
    tab.run(TWICE)
    time.sleep(1.1)
    tab.run(TWICE)
    assert counted(tab) == (2, 2)
    assert site.posts == []


@pytest.mark.alike
def test_a_script_that_sends_the_form_blocks_it_while_it_is_busy(ada: Person) -> None:
    tab = form(ada, "prevent=fetch")
    tab.run(TWICE)
    tab.until(lambda: not tab.run("return document.forms[0].hasAttribute('aria-busy')"), "it is still busy")
    assert site.posts == ["pay"]
    tab.run("document.forms[0].setAttribute('aria-busy', 'true')")
    time.sleep(1.1)
    tab.run(TWICE)
    assert counted(tab) == (1, 3)
    tab.run("document.forms[0].removeAttribute('aria-busy'); document.forms[0].classList.add('htmx-request')")
    tab.run(TWICE)
    assert counted(tab) == (1, 5)
    tab.run("document.forms[0].classList.remove('htmx-request')")
    tab.run(TWICE)
    tab.until(lambda: site.posts == ["pay", "pay"], "it was not sent again")


def test_an_answer_that_leaves_the_page_where_it_is(ada: Person) -> None:
    """204, as after a download: the seconds of the attribute say when the form can be sent again."""
    tab = form(ada, "seconds=2")
    tab.run(
        "const empty = Object.assign(document.createElement('input'), {type: 'hidden', name: 'empty', value: '1'});"
        "document.forms[0].append(empty)"
    )
    tab.run(TWICE)
    assert counted(tab) == (1, 1)
    time.sleep(2.1)
    tab.run(TWICE)
    assert counted(tab) == (2, 2)
    tab.until(lambda: site.posts == ["pay", "pay"], "it was not sent again")


@pytest.mark.alike
def test_a_form_for_another_window_can_be_sent_again_after_a_second(ada: Person) -> None:
    tab = form(ada)
    tab.run(
        "document.body.append(Object.assign(document.createElement('iframe'), {name: 'elsewhere'}));"
        "document.forms[0].target = 'elsewhere'"
    )
    tab.run(TWICE)
    time.sleep(1.1)
    tab.run(TWICE)
    assert counted(tab) == (2, 2)
    tab.until(lambda: site.posts == ["pay", "pay"], "it was not sent again")
