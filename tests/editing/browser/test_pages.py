"""Pages without scripts, in insecure contexts, under a strict policy, and what axe says, in three browsers."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest
from pytest_django.live_server_helper import LiveServer

from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article
from testproject.articles.people import person as user
from tests.support import axe
from tests.support.browsers import OTHER_NAME
from tests.support.wire import REPORTS, wire

from .conftest import TIMES
from .steps import BANNER, BODY, SAVE, allowed, banner, busy, held, offered, read_only, save, type_and_hold

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.browsers import Tab

    from .conftest import Person

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up: six browsers
ADMIN = "/admin/articles/article/"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The browser."""
    return str(request.node.callspec.params["people"])


def is_held(article: Article) -> bool:
    return EditLeaseRow.rows.filter(object_pk=str(article.pk)).exclude(lease="").exists()


def submit(tab: Tab) -> None:
    """Send the form as it is, past every script and check of the browser."""
    tab.follow(lambda: tab.run("HTMLFormElement.prototype.submit.call(document.querySelector('form'))"))


# without JavaScript


@pytest.fixture
def without_scripts(times: None, settings: Any) -> None:
    """A policy that forbids the pages' scripts, and not those of the tests; every browser can be told so."""
    wire.headers["Content-Security-Policy"] = "script-src 'none'"
    settings.DISTLOCK_EDITING = {**TIMES, "WHEN": "open", "TTL_WITHOUT_SCRIPT": 1}


def replace(tab: Tab, text: str) -> None:
    tab.run("document.querySelector(arguments[0]).value = arguments[1]", BODY, text)


@pytest.mark.usefixtures("without_scripts")
@pytest.mark.alike
def test_without_scripts_an_expired_lease_that_nobody_wanted(
    ada: Person, article: Article, saved: Callable[[], str]
) -> None:
    mine = ada.edit(article)
    assert not mine.run("return document.querySelector(arguments[0])", BANNER)
    time.sleep(1.2)
    replace(mine, "By Ada.")
    save(mine)
    assert saved() == "By Ada."


@pytest.mark.usefixtures("without_scripts")
@pytest.mark.alike
def test_without_scripts_an_expired_lease_that_somebody_has_taken(
    ada: Person, bo: Person, article: Article, settings: Any, saved: Callable[[], str]
) -> None:
    mine = ada.edit(article)
    time.sleep(1.2)
    settings.DISTLOCK_EDITING = {**TIMES, "WHEN": "open", "TTL_WITHOUT_SCRIPT": 60}
    theirs = bo.edit(article)
    replace(mine, "By Ada.")
    save(mine)
    assert "Bo" in mine.text("[role=alert]")
    assert "By Ada." in mine.run("return document.documentElement.outerHTML")
    replace(theirs, "By Bo.")
    save(theirs)
    assert saved() == "By Bo."
    # Bo is gone; Ada tries again, and now sees his text
    mine.follow(lambda: mine.click("[value=retry]"))
    assert "By Bo." in mine.text("body")
    assert "By Ada." in mine.run("return document.documentElement.outerHTML")
    assert saved() == "By Bo."


@pytest.mark.usefixtures("without_scripts")
@pytest.mark.alike
def test_without_scripts_the_page_says_who_edits(ada: Person, bo: Person, article: Article, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {**TIMES, "WHEN": "open", "TTL_WITHOUT_SCRIPT": 60}
    ada.edit(article)
    theirs = bo.edit(article)
    assert theirs.text("[data-distlock-served]").startswith("Ada is editing this")


@pytest.mark.alike
def test_a_first_beat_shortens_what_a_page_without_scripts_would_hold(
    ada: Person, bo: Person, article: Article, settings: Any
) -> None:
    """Its script runs, so a minute after its end nobody waits for it."""
    settings.DISTLOCK_EDITING = {**TIMES, "WHEN": "open", "TTL_WITHOUT_SCRIPT": 900}
    mine = ada.edit(article)
    held(mine)
    theirs = bo.edit(article)
    busy(theirs, "Ada")
    with wire.lost(lambda request: request.path.endswith("/release/")):
        mine.open(f"{ada.url}/articles/")
        banner(theirs, "You can edit this now")


# text that a browser fills in again


def test_text_that_comes_back_destroys_a_save_in_a_plain_form(
    ada: Person, article: Article, saved: Callable[[], str]
) -> None:
    """The fault: after "back" there is old text in the form, and its save goes through."""
    mine = ada.open(f"/articles/{article.pk}/plain/")
    mine.type(BODY, " Old text.")
    mine.open(f"{ada.url}/articles/")
    Article.objects.filter(pk=article.pk).update(body="By a shell.")
    mine.back()
    mine.until(lambda: mine.value(BODY) == "On Saturday. Old text.", "the text has not come back")
    save(mine)
    assert saved() == "On Saturday. Old text."


def test_text_that_comes_back_destroys_nothing_in_a_locked_form(
    ada: Person, article: Article, saved: Callable[[], str]
) -> None:
    mine = ada.edit(article)
    type_and_hold(mine, " Old text.")
    mine.open(f"{ada.url}/articles/")
    Article.objects.filter(pk=article.pk).update(body="By a shell.")
    mine.back()
    mine.until(lambda: mine.value(BODY), "the form has not come back")
    submit(mine)
    assert saved() == "By a shell."


@pytest.mark.parametrize("scripts", [True, False])
def test_a_reload_puts_no_old_text_under_a_new_version(
    ada: Person, article: Article, saved: Callable[[], str], name: str, scripts: bool
) -> None:
    if not scripts:
        wire.headers["Content-Security-Policy"] = "script-src 'none'"
    for path, destroyed in ((f"/articles/{article.pk}/plain/", name == "firefox"), (f"/articles/{article.pk}/", False)):
        Article.objects.filter(pk=article.pk).update(body="On Saturday.")
        mine = ada.open(path)
        mine.type(BODY, " Old text.")
        Article.objects.filter(pk=article.pk).update(body="By a shell.")
        mine.reload()
        submit(mine)
        assert saved() == ("On Saturday. Old text." if destroyed else "By a shell.")


# visits that are none


def test_a_prefetch_is_no_visit(ada: Person, bo: Person, article: Article, settings: Any, name: str) -> None:
    settings.DISTLOCK_EDITING = {**TIMES, "WHEN": "open"}
    path = f"/articles/{article.pk}/"
    if name != "webkit":
        wire.head = f'<link rel="prefetch" href="{path}">'
    tab = ada.open("/articles/")
    if name == "webkit":  # it prefetches nothing by itself
        tab.run("fetch(arguments[0], {headers: {'X-Purpose': 'prefetch'}})", path)
    wire.until_seen("ada", path)
    assert not is_held(article)
    wire.head = ""
    held(bo.edit(article))


@pytest.mark.alike
def test_a_prerendered_page_is_no_visit(ada: Person, bo: Person, article: Article, settings: Any, name: str) -> None:
    """Its script runs in Chromium. The others prerender nothing: there the page is just not visited."""
    settings.DISTLOCK_EDITING = {**TIMES, "WHEN": "open"}
    path = f"/articles/{article.pk}/"
    rules = f'{{"prerender": [{{"urls": ["{path}"], "eagerness": "immediate"}}]}}'
    wire.head = f'<script type="speculationrules">{rules}</script>'
    ada.open("/articles/")
    if name == "chromium":
        wire.until_seen("ada", path)
    time.sleep(TIMES["BEAT"])
    assert not is_held(article)
    wire.head = ""
    held(bo.edit(article))


# a strict policy


def test_the_pages_need_nothing_but_the_site_itself(ada: Person, bo: Person, article: Article) -> None:
    wire.headers["Content-Security-Policy"] = f"default-src 'self'; report-uri {REPORTS}"
    ada.open("/articles/")
    other = Article.objects.create(title="Another one", body="-")
    with allowed("bo", "takeover_editlease"):
        for path in (f"/articles/{article.pk}/", f"{ADMIN}{other.pk}/change/"):
            mine, theirs = ada.open(path), bo.open(path)
            type_and_hold(mine, " Strict.")
            busy(theirs, "Ada")
            theirs.click("[data-distlock-action=take_over]")
            theirs.click("[data-distlock-action=confirm]")
            held(theirs)
            banner(mine, "Bo has taken over")
            mine.follow(lambda tab=mine: tab.click(f"{SAVE}, [name=_save]"))
            assert "Bo" in mine.text("[role=alert]")
        bo.open(ADMIN)
        bo.open(f"{ADMIN}{article.pk}/delete/")
    assert wire.reports == []


def test_the_policy_of_these_tests_is_one_that_reports(ada: Person) -> None:
    wire.headers["Content-Security-Policy"] = f"default-src 'self'; report-uri {REPORTS}"
    wire.head = "<script>window.inline = true</script>"
    tab = ada.open("/articles/")
    tab.until(lambda: wire.reports, "no violation was reported")
    assert not tab.run("return window.inline")


# an insecure context


@contextmanager
def insecure(name: str, url: str) -> Iterator[str]:
    """The address of the site under a name that is not localhost, by http."""
    if name != "webkit":
        yield f"http://{OTHER_NAME}:{urlsplit(url).port}"
        return
    # no name can be given to WebKit: the address of a network card
    addresses = [
        each.address for card in psutil.net_if_addrs().values() for each in card if each.family == socket.AF_INET
    ]
    lan = [address for address in addresses if not address.startswith("127.")]
    if not lan:  # a machine without a network: take away what an insecure context has not
        wire.head = "<script>delete Navigator.prototype.locks; delete Crypto.prototype.randomUUID</script>"
        yield url
        return
    live = LiveServer(f"{lan[0]}:0")
    try:
        yield live.url
    finally:
        live.stop()


@contextmanager
def first_may_be_late() -> Iterator[None]:
    """A page asks the other tabs for 150 ms whether its id is taken, which a busy machine may need for an answer."""
    before = wire.head
    wire.head += (
        "<script>const set = setTimeout;"
        "window.setTimeout = (call, delay) => set(call, delay === 150 ? 3000 : delay)</script>"
    )
    yield
    wire.head = before


def test_an_insecure_context(
    ada: Person, bo: Person, article: Article, settings: Any, name: str, saved: Callable[[], str]
) -> None:
    """http on a LAN: no Web Locks, no crypto.randomUUID."""
    settings.ALLOWED_HOSTS = ["*"]
    with insecure(name, ada.url) as url:
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
        time.sleep(TIMES["BEAT"] * 2)
        assert not read_only(mine)
        second = ada.open("/articles/")
        second.open(f"{url}/articles/")
        stored = mine.run("return Object.entries(sessionStorage)")
        second.run("for (const [key, value] of arguments[0]) sessionStorage.setItem(key, value)", stored)
        with first_may_be_late():
            second.open(f"{url}/articles/{article.pk}/")
            banner(second, "in another tab")
        assert mine.run("return sessionStorage['distlock.tab']") != second.run("return sessionStorage['distlock.tab']")
        mine.type(BODY, " Done.")
        save(mine)
        assert saved() == "On Saturday. Done."
        mine.open(f"{ada.url}/articles/")
        second.open(f"{ada.url}/articles/")


# names and texts are no markup


@pytest.mark.alike
def test_a_name_is_text_and_never_markup(ada: Person, bo: Person, article: Article) -> None:
    markup = "<img src=x onerror=hacked=1>"
    person = user("ada")
    type(person).objects.filter(pk=person.pk).update(first_name=markup)
    Article.objects.filter(pk=article.pk).update(title=f"</title>{markup}", body=f"</textarea>{markup}")
    try:
        mine, theirs = ada.edit(article), bo.edit(article)
        type_and_hold(mine)
        busy(theirs, markup)
        assert not theirs.run("return document.querySelector(`${arguments[0]} img`)", BANNER)
        seen = [theirs, bo.open("/articles/"), bo.open(ADMIN), bo.open(f"{ADMIN}{article.pk}/delete/")]
        submit(theirs)
        assert markup in theirs.text("[role=alert]")
        for tab in seen:
            assert markup in tab.text("body")
            assert not tab.run("return window.hacked || document.querySelector('img[src=x]')")
    finally:
        type(person).objects.filter(pk=person.pk).update(first_name="Ada")


# accessibility

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


def faults(tab: Tab, *within: str) -> list[str]:
    """What axe finds in light and dark colours; WebKit knows light ones only, see Profile.dark."""
    found = []
    for dark in (True, False):
        tab.run("return 0")  # in front
        if tab.profile.dark(dark):
            found += [f"{'dark' if dark else 'light'}: {fault}" for fault in axe.faults(tab.profile, within=within)]
    return found


@pytest.mark.alike
def test_axe_finds_nothing_in_any_state(ada: Person, bo: Person, article: Article) -> None:
    with allowed("bo", "takeover_editlease"):
        mine, theirs = ada.edit(article), bo.edit(article)
        assert faults(mine) == []
        type_and_hold(mine)
        busy(theirs, "Ada")
        assert faults(mine) == []
        assert faults(theirs) == []
        theirs.click("[data-distlock-action=take_over]")
        assert faults(theirs) == []
        theirs.click("[data-distlock-action=confirm]")
        held(theirs)
        banner(mine, "Bo has taken over")
        assert faults(mine) == []
        save(mine)
        assert "Bo" in mine.text("[role=alert]")
        assert faults(mine) == []
        mine.open(f"{ada.url}/articles/{article.pk}/")
        offered(mine, "that was not saved")
        mine.run("return 0")  # in front
        assert mine.profile.execute_async_script(LOOKS) == 8
        assert faults(mine) == []


@pytest.mark.alike
def test_axe_finds_nothing_in_the_admin(ada: Person, bo: Person, article: Article) -> None:
    """In the form, which Django's own faults are in as well, and in the list."""
    mine, theirs = ada.open(f"{ADMIN}{article.pk}/change/"), bo.open(f"{ADMIN}{article.pk}/change/")
    listed = bo.open(ADMIN)
    before, before_in_list = faults(theirs, "#article_form"), faults(listed, "#result_list")
    type_and_hold(mine)
    busy(theirs, "Ada")
    assert [kind(fault) for fault in faults(theirs, "#article_form")] == [kind(fault) for fault in before]
    listed.reload()
    assert listed.text(f"tr:has(.action-select[value='{article.pk}']) .field-being_edited_by") == "Ada"
    assert [kind(fault) for fault in faults(listed, "#result_list")] == [kind(fault) for fault in before_in_list]


def kind(fault: str) -> list[str]:
    """The colours and the name of the rule."""
    return fault.split(": ")[:2]
