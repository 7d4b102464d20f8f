"""Pictures of edit locks for the documentation: ``python -m tests.scenarios.editing_screenshots``. Not a test.

Ada and Bo, each in a browser of their own, on a database of their own; the pages come from the server of the demo.
"""

from __future__ import annotations

import base64
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.support.browsers import ChromiumProfile, Tab, browser

from .camera import Photographer, demo

if TYPE_CHECKING:
    from collections.abc import Iterable

# The articles, and the one person who may take over.
PREPARE = """
from django.contrib.auth.models import Permission
from testproject.articles.models import Article
from testproject.articles.people import person
Article.objects.all().delete()
for number, (title, body) in enumerate({
    "A bridge opens": "On Saturday the mayor opens the new bridge over the river.\\n\\nIt took three years to build.",
    "The library stays": "The council has voted: the library keeps its house.",
    "Two goals in extra time": "The home side wins after all.",
}.items(), 1):
    Article.objects.create(pk=number, title=title, body=body)
person("ada")
person("bo").user_permissions.add(Permission.objects.get(codename="takeover_editlease"))
"""
BANNER, BODY = ".distlock-banner", "[name=body]"
ADMIN = "/admin/articles/article/"
STRIP = """<!doctype html><meta charset="utf-8"><style>
body { margin: 0; padding: 16px; display: flex; gap: 16px; background: #e9edf0 }
body { font: 18px/1.35 "DejaVu Sans", sans-serif }
figure { margin: 0; width: 440px } img { display: block; width: 440px; border: 1px solid #9aa5ad; border-radius: 6px }
figcaption { color: #1c2a33; padding-bottom: 10px; height: 24px }
</style>"""


def says(tab: Tab, text: str) -> None:
    tab.until(lambda: text in tab.text(BANNER), f"the banner does not say {text!r}")


def take_over(tab: Tab) -> None:
    tab.click("[data-distlock-action=take_over]")
    tab.type(f"{BANNER} input", "Ada is on the train")


def holds(tab: Tab) -> None:
    tab.until(lambda: tab.value("[name=distlock_edit_lease]"), "the lock was not taken")


def in_the_view(ada: Photographer, bo: Photographer) -> None:
    """Locked, a takeover, lost, and the page with both versions."""
    mine, theirs = ada.open("/articles/1/"), bo.open("/articles/1/")
    mine.type(BODY, " The first bus crosses it at noon.")
    says(theirs, "Ada is editing")
    bo.both("locked", 640, 600, "h1")
    take_over(theirs)
    bo.both("takeover", 640, 600, "h1")
    theirs.click("[data-distlock-action=confirm]")
    holds(theirs)
    says(mine, "Bo has taken over")
    ada.both("lost", 640, 600, "h1")
    theirs.type(BODY, " Admission is free.")
    theirs.follow(lambda: theirs.click("form button:not([type])"))
    time.sleep(6)  # for that long what Bo has saved is kept for Bo
    mine.follow(lambda: mine.click("form button:not([type])"))
    ada.both("conflict", 800, 690)


def in_the_admin(ada: Photographer, bo: Photographer) -> None:
    mine, theirs = ada.open(f"{ADMIN}2/change/"), bo.open(f"{ADMIN}2/change/")
    mine.type(BODY, " For good.")
    says(theirs, "Ada is editing")
    bo.both("admin-form", 1100, 720)
    bo.open(ADMIN)
    bo.both("admin-list", 1100, 420)


def film(ada: Photographer, bo: Photographer) -> None:
    """A takeover in four frames, side by side."""
    size = (440, 520)
    for each in (ada, bo):
        each.size(*size)
    mine, theirs = ada.open("/articles/3/"), bo.open("/articles/3/")
    mine.type(BODY, " A header in minute 119.")
    says(theirs, "Ada is editing")
    frames = [("1. Bo opens what Ada is editing", bo.shot(*size, "h1"))]
    take_over(theirs)
    frames.append(("2. Bo takes over, with a reason", bo.shot(*size, "h1")))
    theirs.click("[data-distlock-action=confirm]")
    holds(theirs)
    theirs.type(BODY, " So it ends.")
    frames.append(("3. Bo edits; the takeover is in the log", bo.shot(*size, "h1")))
    says(mine, "Bo has taken over")
    frames.append(("4. Ada is told, and keeps the typed text", ada.shot(*size, "h1")))
    bo.tab.open(f"data:text/html;base64,{base64.b64encode(strip(frames).encode()).decode()}")
    bo.save("takeover-film", bo.shot(4 * 440 + 5 * 16, 520 + 2 * 16 + 36))


def strip(frames: Iterable[tuple[str, bytes]]) -> str:
    return STRIP + "".join(
        f'<figure><figcaption>{caption}</figcaption><img src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        "</figure>"
        for caption, png in frames
    )


def main() -> None:
    with ExitStack() as stack:
        url = stack.enter_context(demo(("shell", "-c", PREPARE), DISTLOCK_DEMO_EDITING='{"BEAT": 1, "TTL": 30}'))
        people = []
        for slug in ("ada", "bo"):
            profile = stack.enter_context(browser("chromium"))
            assert isinstance(profile, ChromiumProfile)
            people.append(Photographer(profile, url, slug, "/articles/", "editing"))
        for take in (in_the_view, in_the_admin, film):
            take(*people)


if __name__ == "__main__":
    main()
