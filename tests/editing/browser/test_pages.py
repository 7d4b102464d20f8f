"""Pages without scripts, text that browsers fill in again, an insecure context, a strict policy, and what axe says."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article
from tests.support import axe
from tests.support.browsers import OTHER_NAME
from tests.support.wire import REPORTS, wire

from .conftest import TIMES
from .steps import (
    BODY,
    SAVE,
    allowed,
    banner,
    busy,
    held,
    offered,
    read_only,
    save,
    take_over,
    type_and_hold,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.browsers import Tab

    from .conftest import Person

pytestmark = pytest.mark.tier2
ADMIN = "/admin/articles/article/"
NO_SCRIPTS = "script-src 'none'"  # those of the tests run all the same


def is_held(article: Article) -> bool:
    return EditLeaseRow.rows.filter(object_pk=str(article.pk)).exclude(lease="").exists()


def submit(tab: Tab) -> None:
    """Send the form as it is, past every script and check of the browser."""
    tab.follow(lambda: tab.run("HTMLFormElement.prototype.submit.call(document.querySelector('form'))"))


@pytest.mark.everywhere
def test_text_that_comes_back_destroys_nothing(
    ada: Person, article: Article, saved: Callable[[], str], request: pytest.FixtureRequest
) -> None:
    """After "back" and after a reload, with scripts and without; a plain form loses what others have saved."""
    mine = ada.edit(article)
    type_and_hold(mine, " Old text.")
    mine.open(f"{ada.url}/articles/")
    Article.objects.filter(pk=article.pk).update(body="By a shell.")
    mine.back()
    mine.until(lambda: mine.value(BODY), "the form has not come back")
    submit(mine)
    assert saved() == "By a shell."
    firefox = request.node.callspec.params["people"] == "firefox"
    for policy, path, destroyed in (
        ("", f"/articles/{article.pk}/", False),
        (NO_SCRIPTS, f"/articles/{article.pk}/", False),
        ("", f"/articles/{article.pk}/plain/", firefox),
    ):
        if policy:
            wire.headers["Content-Security-Policy"] = policy
        Article.objects.filter(pk=article.pk).update(body="On Saturday.")
        mine = ada.open(path)
        mine.type(BODY, " Old text.")
        Article.objects.filter(pk=article.pk).update(body="By a shell.")
        mine.reload()
        submit(mine)
        assert saved() == ("On Saturday. Old text." if destroyed else "By a shell.")
        wire.headers.clear()


def test_a_page_that_is_only_fetched_is_no_visit(ada: Person, bo: Person, article: Article, settings: Any) -> None:
    """Prefetched by Chromium, or prerendered, so that its script runs."""
    settings.DISTLOCK_EDITING = {**TIMES, "WHEN": "open"}
    path = f"/articles/{article.pk}/"
    rules = f'{{"prerender": [{{"urls": ["{path}"], "eagerness": "immediate"}}]}}'
    for head in (f'<link rel="prefetch" href="{path}">', f'<script type="speculationrules">{rules}</script>'):
        wire.head = head
        wire.seen.clear()
        ada.open("/articles/")
        wire.until_seen("ada", path)
        time.sleep(TIMES["BEAT"])
        assert not is_held(article)
    wire.head = ""
    held(bo.edit(article))


def test_the_pages_need_nothing_but_the_site_itself(ada: Person, bo: Person, article: Article) -> None:
    wire.headers["Content-Security-Policy"] = f"default-src 'self'; report-uri {REPORTS}"
    ada.open("/articles/")
    other = Article.objects.create(title="Another one", body="-")
    with allowed("bo", "takeover_editlease"):
        for path in (f"/articles/{article.pk}/", f"{ADMIN}{other.pk}/change/"):
            mine, theirs = ada.open(path), bo.open(path)
            type_and_hold(mine, " Strict.")
            busy(theirs, "Ada")
            take_over(theirs)
            banner(mine, "Bo has taken over")
            assert read_only(mine)
            mine.follow(lambda tab=mine: tab.click(f"{SAVE}, [name=_save]"))
            assert "Bo" in mine.text("[role=alert]")
        bo.open(ADMIN)
        bo.open(f"{ADMIN}{article.pk}/delete/")
    assert wire.reports == []
    wire.head = "<script>window.inline = true</script>"
    tab = ada.open("/articles/")
    tab.until(lambda: wire.reports, "the policy of this test reports nothing")


# A page asks the other tabs for 150 ms whether its id is taken, which a busy machine may need for an answer.
PATIENT = (
    "<script>const set = setTimeout;"
    "window.setTimeout = (call, delay) => set(call, delay === 150 ? 3000 : delay)</script>"
)


def test_an_insecure_context(
    ada: Person, bo: Person, article: Article, settings: Any, saved: Callable[[], str]
) -> None:
    """http on a LAN: no Web Locks, no crypto.randomUUID."""
    settings.ALLOWED_HOSTS = ["*"]
    url = f"http://{OTHER_NAME}:{urlsplit(ada.url).port}"
    mine = ada.open("/articles/")
    mine.open(f"{url}/articles/")
    mine.follow(lambda: mine.click("[formaction='/articles/as/ada/']"))
    mine.open(f"{url}/articles/{article.pk}/")
    assert mine.run("return !navigator.locks && !crypto.randomUUID")
    type_and_hold(mine, " On a LAN.")
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    mine.reload()
    held(mine)
    assert not read_only(mine)
    second = ada.open("/articles/")
    second.open(f"{url}/articles/")
    stored = mine.run("return Object.entries(sessionStorage)")
    second.run("for (const [key, value] of arguments[0]) sessionStorage.setItem(key, value)", stored)
    wire.head = PATIENT
    second.open(f"{url}/articles/{article.pk}/")
    banner(second, "in another tab")
    assert mine.run("return sessionStorage['distlock.tab']") != second.run("return sessionStorage['distlock.tab']")
    mine.type(BODY, " Done.")
    save(mine)
    assert saved() == "On Saturday. Done."


LOOKS = """
const [done] = arguments;
import("/static/django_distlock/editing.js").then(({ FormView, TEXTS }) => {
  const view = new FormView(document.querySelector("[data-distlock-edit]"), TEXTS, sessionStorage);
  const looks = ["busy", "changed", "lost", "free", "warning", "given", "error", "kept"];
  view.form.prepend(...looks.map((look) => {
    const box = document.createElement("div");
    box.setAttribute("role", "status");
    view.fill(box, look, `A banner of the look ${look}`, ["take_over", "reload"]);
    return box;
  }));
  done(looks.length);
});
"""


def faults(tab: Tab) -> list[str]:
    """What axe finds in light and dark colours."""
    found = []
    for dark in (True, False):
        tab.run("return 0")  # in front
        assert tab.profile.dark(dark)
        found += [f"{'dark' if dark else 'light'}: {fault}" for fault in axe.faults(tab.profile)]
    return found


def test_axe_finds_nothing_in_any_state(ada: Person, bo: Person, article: Article) -> None:
    with allowed("bo", "takeover_editlease"):
        mine, theirs = ada.edit(article), bo.edit(article)
        type_and_hold(mine)
        busy(theirs, "Ada")
        assert faults(mine) == []
        theirs.click("[data-distlock-action=take_over]")
        assert faults(theirs) == []
        theirs.click("[data-distlock-action=confirm]")
        held(theirs)
        banner(mine, "Bo has taken over")
        save(mine)
        assert "Bo" in mine.text("[role=alert]")
        assert faults(mine) == []
        mine.open(f"{ada.url}/articles/{article.pk}/")
        offered(mine, "that was not saved")
        mine.run("return 0")  # in front
        assert mine.profile.execute_async_script(LOOKS) == 8
        assert faults(mine) == []
