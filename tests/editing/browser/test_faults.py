"""Crashes, requests that get lost or come late, and networks that end, in Chromium, Firefox and WebKit."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from django_distlock.editing import editors
from tests.support.timing import within
from tests.support.wire import wire

from .conftest import RESERVED, TIMES
from .steps import BODY, allowed, banner, busy, held, offered, read_only, save, type_and_hold

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

    from testproject.articles.models import Article

    from .conftest import Person

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: six browsers


def is_release(request: HttpRequest) -> bool:
    return request.path.endswith("/release/")


def says(*verbs: str) -> Callable[[HttpRequest], bool]:
    """Is it a beat with one of these verbs?"""

    def matches(request: HttpRequest) -> bool:
        if request.method != "POST" or not request.path.endswith("/beat/"):
            return False
        return any(item["verb"] in verbs for item in json.loads(request.body)["items"])

    return matches


def test_a_lost_release_blocks_until_the_ttl(ada: Person, bo: Person, article: Article) -> None:
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine)
    busy(theirs, "Ada")
    with wire.lost(is_release):
        mine.open(f"{ada.url}/articles/")
        left = time.monotonic()
        banner(theirs, "You can edit this now")
    within(time.monotonic() - left, TIMES["TTL"] + TIMES["BEAT"] + 2)


def test_a_late_release_frees_nothing_that_was_adopted(ada: Person, bo: Person, article: Article) -> None:
    """The page was reloaded, and the release of the old page comes behind the first beat of the new one."""
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine)
    busy(theirs, "Ada")
    with wire.held_back(is_release):
        mine.reload()
        held(mine)
        wire.seen.clear()
    wire.until_seen("ada", "/distlock/editing/release/")
    time.sleep(RESERVED + TIMES["BEAT"])
    busy(theirs, "Ada")
    assert not read_only(mine)


@pytest.mark.alike
def test_beats_that_take_longer_than_their_interval_do_not_overlap(
    ada: Person, bo: Person, article: Article, saved: Callable[[], str]
) -> None:
    mine = ada.edit(article)
    mine.run(
        "const send = window.fetch; window.flying = window.most = 0;"
        "window.fetch = async (...request) => {"
        "  window.most = Math.max(window.most, ++window.flying);"
        "  try { return await send(...request); } finally { window.flying--; } }"
    )
    with wire.held_back(says("claim")):
        mine.type(BODY, " Slow.")
        time.sleep(TIMES["BEAT"] * 2)
        mine.type(BODY, " Slower.")
        assert mine.run("return window.flying") == 1
    held(mine)
    assert mine.run("return window.most") == 1
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    save(mine)
    assert saved() == "On Saturday. Slow. Slower."


@pytest.mark.alike
def test_an_answer_that_is_lost_is_asked_for_again(ada: Person, bo: Person, article: Article) -> None:
    """The claim has reached the server; the same id claims again, and Ada is not busy with herself."""
    mine, theirs = ada.edit(article), bo.edit(article)
    with wire.answers_lost(says("claim")):
        mine.type(BODY, " Again.")
        busy(theirs, "Ada")
        assert not mine.value("[name=distlock_edit_lease]")
    held(mine)
    assert not read_only(mine)
    assert "another tab" not in mine.text(".distlock-banner")


@pytest.mark.alike
def test_an_old_answer_is_not_believed(ada: Person, bo: Person, article: Article) -> None:
    """While Bo watches and the answer is on its way, he is not told of a lock that Ada has left meanwhile."""
    with allowed("bo", "takeover_editlease"):
        mine, theirs = ada.edit(article), bo.edit(article)
        type_and_hold(mine)
        busy(theirs, "Ada")
        with wire.held_back(says("renew")):  # Ada's beat is late
            theirs.click("[data-distlock-action=take_over]")
            theirs.click("[data-distlock-action=confirm]")
            held(theirs)
        banner(mine, "Bo has taken over")
        time.sleep(TIMES["BEAT"] * 2)
        assert not read_only(theirs)
        assert read_only(mine)


def test_a_network_that_is_away_for_longer_than_the_ttl(
    ada: Person, bo: Person, article: Article, saved: Callable[[], str]
) -> None:
    """Somebody came meanwhile: nothing of either text is lost."""
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine, " Offline.")
    busy(theirs, "Ada")
    ada.profile.offline(mine, True)
    banner(mine, "No connection")
    assert not read_only(mine)
    banner(theirs, "You can edit this now")
    type_and_hold(theirs, " By Bo.")
    save(theirs)
    mine.type(BODY, " Still offline.")
    ada.profile.offline(mine, False)
    banner(mine, "has saved this meanwhile")
    assert mine.value(BODY) == "On Saturday. Offline. Still offline."
    assert saved() == "On Saturday. By Bo."
    mine.run("document.querySelector('form').requestSubmit()")
    mine.until(lambda: "By Bo." in mine.text("body"), "their text is missing")
    assert "Still offline." in mine.run("return document.documentElement.outerHTML")
    assert saved() == "On Saturday. By Bo."


def test_a_tab_that_crashed_and_was_restored(
    ada: Person, bo: Person, article: Article, saved: Callable[[], str]
) -> None:
    """No release came. It is the same tab: it adopts its own lease at once, and nobody is told "another tab"."""
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine, " Before the crash.")
    busy(theirs, "Ada")
    mine.reload()  # what was typed is stored when a page goes, and a crash says nothing
    mine.click("[data-distlock-action=put_back]")
    held(mine)
    before = mine.value("[name=distlock_edit_lease]")
    ada.profile.crash_and_restore(mine)
    held(mine)
    assert mine.value("[name=distlock_edit_lease]") != before
    busy(theirs, "Ada")
    assert not read_only(mine)
    assert "another tab" not in mine.text(".distlock-banner")
    mine.type(BODY, " After it.")
    save(mine)
    assert saved().endswith("After it.")


@pytest.mark.alike
def test_text_is_offered_to_who_comes_back_after_somebody_else_saved(
    ada: Person, bo: Person, article: Article, saved: Callable[[], str]
) -> None:
    mine, theirs = ada.edit(article), bo.edit(article)
    type_and_hold(mine, " Unsaved.")
    busy(theirs, "Ada")
    mine.open(f"{ada.url}/articles/")
    banner(theirs, "You can edit this now")
    type_and_hold(theirs, " By Bo.")
    save(theirs)
    mine.until(lambda: not editors(type(article).objects.all()), "what Bo has left is not free")
    mine.open(f"{ada.url}/articles/{article.pk}/")
    offered(mine, "against an older version")
    mine.click("[data-distlock-action=put_back]")
    assert mine.value(BODY) == "On Saturday. Unsaved."
    held(mine)
    save(mine)  # Ada has seen Bo's text, and was told
    assert saved() == "On Saturday. Unsaved."
