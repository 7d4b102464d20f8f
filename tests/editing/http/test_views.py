"""Each kind of view under an edit lock."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pytest
from django import forms
from django.contrib.auth.models import User
from django.contrib.messages import get_messages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from django_distlock.editing import saving
from django_distlock.editing.http.refusals import Refusal, add_conflict
from django_distlock.editing.saving import Save
from django_distlock.leases import upkeep
from django_distlock.models import WebLease
from testproject.articles.models import Article, Source
from tests.editing import site
from tests.editing.people import GRANT, LEASE, Person, body, controls, hidden, is_held, names, refused, row

CHANGE, HISTORY = "articles/article/{}/change/", "articles/article/{}/history/1/"
EVERY_PAGE = [
    "/edit/{}/",
    "/careless/{}/",
    "/function/{}/",
    "/inside/{}/",
    "/posting/{}/",  # it saves before, or without, the post() of the mixin
    "/decorated/{}/",
    *(f"/{site}/{CHANGE}" for site in ("admin", "versioned", "outside", "popups")),
    f"/admin/{CHANGE}?_popup=1",
    f"/versioned/{HISTORY}",
]


@pytest.mark.parametrize("page", EVERY_PAGE)
@pytest.mark.usefixtures("atomic_requests")
def test_e5_e7_a_save_is_refused_while_somebody_else_edits_and_after_a_write(
    ada: Person, bo: Person, article: Article, page: str
) -> None:
    """Also inside the transactions of other code, such as django-reversion's. The text is kept."""
    path = page.format(article.pk)
    first, second = ada.open(path), bo.open(path)
    assert (body(), is_held(article)) == ("On Saturday.", False)
    ada.save(path, first, body="By Ada.")
    assert (body(), row(article).changed_by) == ("By Ada.", "Ada")
    refused(bo.save(path, second, body="By Bo."), "Ada has saved this since you opened the form.", "By Bo.")
    held = ada.hold(f"/edit/{article.pk}/")
    refused(bo.save(path, body="By Bo."), "Ada is editing this now.", "By Bo.")
    assert body() == "By Ada."
    ada.give_back(held)
    fields = bo.open(path)
    Article.objects.update(body="By a command.")
    refused(bo.save(path, fields, body="By Bo."), "Somebody else has saved this", "By Bo.")
    assert body() == "By a command."
    bo.save(path, body="By Bo.")
    assert body() == "By Bo.", "that somebody held it is no reason"
    if "history" not in page:
        fields = bo.open(path)
        article.delete()
        refused(bo.save(path, fields, body="By Bo."), "deleted", "By Bo.")
        assert not Article.objects.exists()


@pytest.mark.parametrize("kind", ["edit", "careless", "function"])
def test_e6_e7_what_is_not_in_the_form_is_left_alone_and_a_refused_form_comes_back(
    ada: Person, bo: Person, article: Article, kind: str
) -> None:
    path = f"/{kind}/{article.pk}/"
    first, second = ada.open(path), bo.open(path)
    Article.objects.update(section="culture")
    assert ada.save(path, first, body="By Ada.").status_code == 302
    article.refresh_from_db()
    assert (article.section, article.body) == ("culture", "By Ada.")
    answer = bo.save(path, second, body="By Bo.")
    refused(answer, "By Bo.")
    if kind != "function":
        refused(answer, "Saved now: By Ada.", "your text replaces what is saved now")
        assert bo.save(path, hidden(answer), body="By both.").status_code == 302
        assert body() == "By both."
    article.delete()
    assert ada.save(path, {}).status_code == ada.save(f"/{kind}/{10**30}/", {}).status_code == 404


@pytest.mark.parametrize(("kind", "method"), [("delete", "post"), ("at-once", "post"), ("at-once", "delete")])
def test_deletion(ada: Person, bo: Person, article: Article, kind: str, method: str) -> None:
    path, form = f"/{kind}/{article.pk}/", f"/edit/{article.pk}/"
    fields, send = bo.open(path) if kind == "delete" else {}, getattr(bo.client, method)
    held = ada.hold(form)
    refused(send(path, fields))
    assert bo.client.delete(path, headers={"Distlock-Edit": "1"}).status_code == 405, "a way around the lock"
    ada.give_back(held)
    assert bo.client.delete(form).status_code == 405
    assert "DELETE" not in bo.client.options(form)["Allow"]
    assert send(path, fields).status_code == 302
    assert not Article.objects.exists()


def test_the_profile_of_the_user_of_the_request(ada: Person) -> None:
    first, second = (ada.hold("/profile/1/") for _ in range(2))
    done = ada.client.post("/profile/1/", {**first, "first_name": "Ada L."})
    assert (done.status_code, User.objects.get(username="ada").first_name) == (302, "Ada L.")
    refused(ada.client.post("/profile/1/", {**second, "first_name": "A."}), "Ada L.")


def test_e7_a_form_of_no_model_with_a_secret_and_a_file(ada: Person, bo: Person, article: Article) -> None:
    path = f"/publish/{article.pk}/"
    ada.hold(path)
    data = {**bo.open(path), "title": "By Bo"}
    page = refused(bo.client.post(path, {**data, "day": "2026-01-02"}), "Ada is editing this now.")
    assert re.findall("Saved now: [^<]*", page) == ["Saved now: as before"], "the form knows nothing of a saved day"
    Article.objects.update(body="By other code.")
    data |= {"password": "hunter2", "day": "2026-01-02", "picture": SimpleUploadedFile("cat.png", b"cat")}
    page = refused(bo.client.post(path, data), "By Bo")
    assert "hunter2" not in page


def test_e7_trying_again_keeps_the_version(ada: Person, bo: Person, article: Article) -> None:
    """While the other one edits. On the page of a function, and in the form of a class."""
    for path, word in ((f"/function/{article.pk}/", "Try again"), (f"/edit/{article.pk}/", "By Bo.")):
        mine, theirs = bo.open(path), ada.hold(f"/edit/{article.pk}/")
        again = bo.save(path, mine, body="By Bo.")
        refused(again, "Ada is editing this now.", word)
        assert hidden(again)[GRANT] == mine[GRANT]
        Article.objects.update(body=f"By a command, on {path}")
        ada.give_back(theirs)
        refused(bo.save(path, hidden(again), body="By Bo."), "Somebody else has saved this")
        assert "<button" not in bo.save(f"/function/{article.pk}/", mine).content.decode()


class Saved(forms.Form):
    """A field of each kind, with what is saved; nothing is known of what is ``unsaved``."""

    word = forms.CharField(initial="old")
    nothing = forms.CharField(required=False)
    unsaved = forms.CharField(required=False)
    day = forms.DateField(initial=date(2026, 1, 2))
    flag = forms.BooleanField(required=False, initial=True)
    section = forms.ChoiceField(choices=[("Group", [("a", "The first")]), ("b", "The second")], initial="a")
    several = forms.ModelMultipleChoiceField(Article.objects.all(), required=False)
    password = forms.CharField(initial="hunter1", widget=forms.PasswordInput)
    same = forms.CharField(initial="as it was")


def test_e7_what_is_saved_now_is_shown_as_people_read_it(article: Article) -> None:
    sent = {"word": "new", "nothing": "x", "day": "2026-03-04", "section": "b"}
    sent |= {"password": "hunter2", "same": "as it was", "unsaved": "x"}
    saved = {name: field.initial for name, field in Saved.base_fields.items() if name != "unsaved"}
    form = Saved(sent, initial={**saved, "several": [article]})
    add_conflict(form, Refusal(reason="changed", who="Ada"))
    found = {name: " ".join(texts) for name, texts in form.errors.items()}
    assert found.pop("__all__").startswith("Ada has saved this since you opened the form.")
    says = {"word": "old", "nothing": "nothing", "day": "Jan. 2, 2026", "flag": "yes", "section": "The first"}
    for name, text in {**says, "several": "A bridge opens"}.items():
        assert f"Saved now: {text}" in found.pop(name)
    assert not found


def test_who_is_refused_reads_who_edits(ada: Person, bo: Person, article: Article) -> None:
    """In an answer of the view's own, in that for programs, and if it is a visitor without an account."""
    path, nobody = f"/edit/{article.pk}/", Person(None)
    held = nobody.hold(path)
    refused(Person(None).save(path), "A visitor without an account is editing this now.")
    assert nobody.save(path, held).status_code == 302
    WebLease.rows.update(expires_at=1)
    ada.hold(path)
    answer = bo.save(f"/own/{article.pk}/", {})
    assert (answer.status_code, answer.content) == (418, b"Ada is editing this now.")
    answer = bo.client.post(f"/function/{article.pk}/", {}, headers={"Accept": "application/json"})
    assert (answer.status_code, answer["Content-Type"]) == (423, "application/problem+json")
    assert answer.json()["holder"] == "Ada"


def test_an_async_view(ada: Person, bo: Person, article: Article) -> None:
    path = f"/async/{article.pk}/"
    ada.client.raise_request_exception = False
    assert ada.client.post(path, {"body": "By Ada.", "break": "1"}).status_code == 500
    assert body() == "On Saturday.", "an error rolls back"
    assert ada.client.post(path, {"body": "By Ada."}).status_code == 302
    assert row(article).changed_by == "Ada"
    ada.hold(f"/edit/{article.pk}/")
    refused(bo.client.post(path, {"body": "By Bo."}))
    assert body() == "By Ada."


@pytest.mark.parametrize("path", ["/stream/{}/", "/stream-function/{}/", "/api/{}/?stream"])
def test_e4_an_answer_that_is_streamed_is_refused(ada: Person, article: Article, path: str) -> None:
    """Its body would be made, and might write, after the lock was given back."""
    path, texts = path.format(article.pk), {"title": "By Ada", "body": "By Ada."}
    with pytest.raises(TypeError, match="returned a StreamingHttpResponse, whose content would be sent after the lock"):
        ada.client.delete(path) if "api" in path else ada.client.post(path, texts)
    article.refresh_from_db()
    assert (article.title, article.body, row(article)) == ("A bridge opens", "On Saturday.", None)


PAGES = ["edit", "publish", "function", "counted", "api", "family/articles/article", "versioned/articles/article"]


def test_e10_the_mode_off_costs_no_statement(ada: Person, article: Article, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"MODE": "off"}
    with CaptureQueriesContext(connection) as queries:
        for page in PAGES:
            path = f"/{page}/{article.pk}/{'change/' if 'article' in page else ''}"
            read = ada.client.get(path)
            assert "distlock" not in read.content.decode()
            assert "ETag" not in read
            if page == "api":
                assert ada.patch(path, **{"If-Match": '"old"'}).status_code == 200
                continue
            assert ada.save(path, {}, title="").status_code == 200
            assert ada.save(path, {}, title=page).status_code == (200 if page == "counted" else 302)
            assert Article.objects.get().title == page
        assert "distlock" not in ada.client.get("/family/articles/article/").content.decode()
        assert ada.client.post(f"/delete/{article.pk}/").status_code == 302
    assert not [query for query in queries if "weblease" in query["sql"]]
    assert not Article.objects.exists()


@pytest.mark.parametrize("way", ["view", "new", "deleted"])
@pytest.mark.usefixtures("atomic_requests")
def test_e6_a_row_of_an_inline_formset_that_was_written_meanwhile(
    ada: Person, bo: Person, article: Article, sources: list[Source], way: str
) -> None:
    """Bo has not touched the row; the formset would write its old text all the same."""
    path = f"/all/{article.pk}/"
    fields = controls(bo.client.get(path), "all") | {"body": "By Bo.", "sources-2-name": "by Bo"}
    if way == "view":
        address = f"/row/{sources[0].pk}/"
        assert ada.client.post(address, {**ada.open(address), "name": "by Ada"}).status_code == 302
    elif way == "new":
        Source.objects.create(article=article, name="by Ada")
    else:
        sources[0].delete()
    before = names()
    answer = bo.ask("claim", fields[GRANT][0], path=path)
    assert (answer["state"], bool(answer["changed"])) == ("held", True), "the page learns of it"
    answer = bo.client.post(path, fields)
    refused(answer, "By Bo.", 'value="by Bo"')
    assert (names(), body()) == (before, "On Saturday.")
    assert bo.client.post(path, controls(answer, "all")).status_code == 302
    assert names() == sorted(["by Bo", "one", "three", *(["by Ada"] if way == "new" else [])])


# a page that stays after its save keeps its lease, so that nobody gets in between before its next beat; one that is
# shown again has some seconds; one that is left for another page gives it back

SCRIPT = {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"}
BROWSER = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("address", "headers", "left"),
    [
        ("/counted/{}/", {}, "stays"),
        ("/popups/articles/article/{}/change/", {}, "stays"),
        ("/empty/{}/", BROWSER, "stays"),  # at 204
        ("/download/{}/", BROWSER, "stays"),
        ("/edit/{}/", SCRIPT, "stays"),  # fetch() follows the redirect
        ("/admin/articles/article/{}/change/", SCRIPT, "stays"),
        ("/again/{}/", BROWSER, "again"),
        ("/quiet/{}/", {}, "again"),
        ("/admin/articles/article/{}/change/?_continue", BROWSER, "again"),
        ("/edit/{}/", BROWSER, "gone"),
        ("/function/{}/", {}, "gone"),
        ("/admin/articles/article/{}/change/", BROWSER, "gone"),
    ],
)
def test_the_lease_of_a_page_after_its_save(
    ada: Person, bo: Person, article: Article, address: str, headers: dict[str, str], left: str
) -> None:
    address, _, button = address.partition("?")
    address, form = address.format(article.pk), f"/edit/{article.pk}/"
    fields, theirs = ada.hold(address if "admin" in address or "popups" in address else form), bo.open(form)
    sent = {"title": "x", "body": "y", "section": "news", "sources-TOTAL_FORMS": 0, "sources-INITIAL_FORMS": 0}
    done = ada.client.post(address, {**sent, **fields, button: "1"}, headers=headers)
    assert done.status_code in (200, 204, 302)
    assert body() == "y"
    leases = upkeep.held("default", of_objects=True)
    assert [each.expires_in > 30 for each in leases] == {"stays": [True], "again": [False], "gone": []}[left]
    if left == "gone":
        assert ada.renew(fields)["reason"] == "released", "a late beat does not prolong it"
    if left == "again":  # my own save hands it over to the next page
        answer = ada.ask("adopt", ada.open(form)[GRANT], previous=fields[LEASE])
        assert (answer["state"], answer["changed"]) == ("held", None)
    refused(bo.save(form, theirs))  # it counts, also if it answers without a redirect


# the database gives up because of other transactions: once more, then a page; never an error, no message twice


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make the next saves fail after they have written, and have said so: as at the COMMIT."""
    left: list[int] = []

    def failing_after(work: Any) -> Any:
        def failing_work(*args: Any, **kwargs: Any) -> Any:
            found = work(*args, **kwargs)
            if left:
                left.pop()
                raise OperationalError("database is locked")
            return found

        return failing_work

    monkeypatch.setattr(site, "HttpResponseRedirect", failing_after(site.HttpResponseRedirect))  # of the function
    monkeypatch.setattr(site.Cheerful, "form_valid", failing_after(site.Cheerful.form_valid))
    monkeypatch.setattr(site.Api, "perform_update", failing_after(site.Api.perform_update))
    monkeypatch.setattr(Save, "deleted", failing_after(Save.deleted))
    return left


@pytest.mark.parametrize("kind", ["cheerful", "function"])
@pytest.mark.usefixtures("atomic_requests")
def test_e9_once_more_then_a_page(ada: Person, article: Article, failing: list[int], kind: str) -> None:
    path = f"/{kind}/{article.pk}/"
    fields = ada.open(path)
    failing.extend([1, 1])
    answer = ada.save(path, fields, body="By Ada.")
    refused(answer, "Others are saving this at the same moment.", "By Ada.")
    assert not list(get_messages(answer.wsgi_request))
    failing.append(1)  # a file is not saved twice
    refused(ada.save(path, fields, picture=SimpleUploadedFile("cat.png", b"cat")))
    failing.extend([1, 1])
    answer = ada.patch(f"/api/{article.pk}/")
    assert (answer.status_code, answer.json()["code"]) == (423, "saving")
    assert body() == "On Saturday."
    failing.append(1)
    done = ada.save(path, fields, body="By Ada.")
    assert done.status_code == 302
    assert body() == "By Ada."
    said = [str(message) for message in get_messages(done.wsgi_request)]
    assert said == (["Saved."] if kind == "cheerful" else [])


@pytest.mark.parametrize("path", ["/delete/{}/", "/at-once/{}/", "/admin/articles/article/{}/delete/", "/api/{}/"])
def test_e9_a_deletion_once_more_then_a_page(ada: Person, article: Article, failing: list[int], path: str) -> None:
    """Django takes the key from an object that it deletes; the second attempt needs it."""
    path, is_api = path.format(article.pk), "api" in path
    failing.extend([1, 1])
    answer = ada.client.delete(path) if is_api else ada.client.post(path, {"post": "yes"})
    assert answer.status_code == (423 if is_api else 409)
    assert "saving this at the same moment" in answer.content.decode()
    assert Article.objects.exists()
    failing.append(1)
    answer = ada.client.delete(path) if is_api else ada.client.post(path, {"post": "yes"})
    assert answer.status_code == (204 if is_api else 302)
    assert not Article.objects.exists()


def test_e9_the_second_attempt_of_the_api_has_the_object_as_it_was_locked(
    ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []
    wrote, lock = Save.wrote, saving.rows.lock

    def failing_once(save: Save, **options: Any) -> None:
        wrote(save, **options)
        if len(attempts) == 1:
            raise OperationalError("database is locked")

    def locked(resources: Any) -> Any:
        if attempts:  # between the two
            Article.objects.update(section="culture")
        attempts.append("")
        return lock(resources)

    monkeypatch.setattr(Save, "wrote", failing_once)
    monkeypatch.setattr(saving.rows, "lock", locked)
    assert ada.patch(f"/api/{article.pk}/").status_code == 200
    article.refresh_from_db()
    assert (len(attempts), article.body, article.section) == (2, "By the API.", "culture")
