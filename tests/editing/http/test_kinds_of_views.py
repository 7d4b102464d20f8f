"""Each kind of view under an edit lock."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError, connection, connections
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_distlock.http.visitors import principal_of_user
from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article
from tests.editing import site
from tests.editing.people import Person, hidden, is_held, row

pytestmark = pytest.mark.usefixtures("site")
each_kind = pytest.mark.parametrize("kind", ["edit", "careless", "function"])


def sent(fields: dict[str, str], **more: Any) -> dict[str, Any]:
    return {"title": "A bridge opens", "body": "On Saturday.", **fields, **more}


@each_kind
@pytest.mark.usefixtures("atomic_requests")
def test_the_second_save_is_refused_and_keeps_the_text(ada: Person, bo: Person, article: Article, kind: str) -> None:
    path = f"/{kind}/{article.pk}/"
    first, second = ada.open(path), bo.open(path)
    Article.objects.update(section="culture")  # is not in the form
    assert ada.client.post(path, sent(first, body="By Ada.")).status_code == 302
    assert row(article).changed_by == "Ada"
    refused = bo.client.post(path, sent(second, body="By Bo."))
    assert refused.status_code == 409
    for text in ("Ada has saved this since you opened the form.", "By Bo."):
        assert text in refused.content.decode()
    article.refresh_from_db()
    assert (article.section, article.body) == ("culture", "By Ada.")
    if kind == "function":
        return
    assert "By Ada." in refused.content.decode()
    again = bo.client.post(path, sent(hidden(refused), body="By Bo.", distlock_edit_choice="review"))
    assert again.status_code == 200
    assert "if you save it, it replaces theirs" in again.content.decode()
    assert bo.client.post(path, sent(hidden(again), body="By both.")).status_code == 302
    assert Article.objects.get().body == "By both."


@each_kind
def test_writes_and_deletions_by_other_code_are_seen(ada: Person, article: Article, kind: str) -> None:
    path = f"/{kind}/{article.pk}/"
    fields = ada.open(path)
    Article.objects.update(body="By a command.")
    refused = ada.client.post(path, sent(fields, body="By Ada."))
    assert refused.status_code == 409
    assert "Somebody else has saved this" in refused.content.decode()
    article.delete()
    refused = ada.client.post(path, sent(fields, body="By Ada."))
    assert refused.status_code == 409
    assert "By Ada." in refused.content.decode()
    assert not Article.objects.exists()
    assert ada.client.post(path, sent({})).status_code == 404


@each_kind
def test_refused_while_another_user_edits_and_not_afterwards(
    ada: Person, bo: Person, article: Article, kind: str
) -> None:
    path = f"/{kind}/{article.pk}/"
    mine, theirs = ada.open(path), bo.open(path)
    assert not is_held(article)
    lease = bo.claim(theirs["distlock_edit"])
    refused = ada.client.post(path, sent(mine, body="By Ada."))
    assert refused.status_code == 409
    assert "Bo is editing this now." in refused.content.decode()
    assert Article.objects.get().body == "On Saturday."
    bo.release([theirs["distlock_edit"]], [lease])
    assert ada.client.post(path, sent(mine, body="By Ada.")).status_code == 302


def test_my_own_save_hands_the_lease_over(ada: Person, bo: Person, article: Article) -> None:
    path = f"/edit/{article.pk}/"
    fields = ada.open(path)
    lease = ada.claim(fields["distlock_edit"])
    EditLeaseRow.rows.update(expires_at=1)  # nobody wanted it meanwhile
    posted = sent({**fields, "distlock_edit_lease": lease, "distlock_edit_tab": ada.tab}, body="By Ada.")
    assert ada.client.post(path, posted).status_code == 302
    EditLeaseRow.rows.update(expires_at=F("expires_at") + 60_000_000)  # the reserve is five seconds
    again = ada.open(path)
    assert bo.client.post(path, sent(bo.open(path), body="By Bo.")).status_code == 409
    answer = ada.ask("adopt", again["distlock_edit"], lease="b" * 32, previous=lease)
    assert (answer["state"], answer["changed"]) == ("held", None)


@pytest.mark.parametrize(("kind", "method"), [("delete", "post"), ("at-once", "post"), ("at-once", "delete")])
def test_deletion(ada: Person, bo: Person, article: Article, kind: str, method: str) -> None:
    path = f"/{kind}/{article.pk}/"
    fields = bo.open(path) if kind == "delete" else {}
    grant = ada.open(f"/edit/{article.pk}/")["distlock_edit"]
    lease = ada.claim(grant)
    assert getattr(bo.client, method)(path, fields).status_code == 409
    ada.release([grant], [lease])
    assert getattr(bo.client, method)(path, fields).status_code == 302
    assert not Article.objects.exists()


def test_methods_that_a_view_does_not_have(ada: Person, article: Article) -> None:
    assert ada.client.delete(f"/edit/{article.pk}/").status_code == 405
    assert "DELETE" not in ada.client.options(f"/edit/{article.pk}/")["Allow"]
    assert ada.client.post(f"/function/{10**30}/", {"title": "x", "body": "y"}).status_code == 404


def test_visitors_without_an_account(article: Article) -> None:
    path = f"/edit/{article.pk}/"
    first, second = Person(None), Person(None)
    mine, theirs = first.open(path), second.open(path)
    lease = first.claim(mine["distlock_edit"])
    refused = second.client.post(path, sent(theirs, body="By the second."))
    assert refused.status_code == 409
    assert "A visitor without an account is editing this now." in refused.content.decode()
    posted = sent({**mine, "distlock_edit_lease": lease, "distlock_edit_tab": first.tab}, body="By the first.")
    assert first.client.post(path, posted).status_code == 302


def test_a_form_of_no_model_with_a_secret_and_a_file(ada: Person, bo: Person, article: Article) -> None:
    path = f"/publish/{article.pk}/"
    fields = bo.open(path)
    ada.claim(ada.open(path)["distlock_edit"])
    data = {**fields, "title": "By Bo", "password": "hunter2", "day": "2026-01-02"}
    refused = bo.client.post(path, {**data, "picture": SimpleUploadedFile("cat.png", b"cat")})
    text = refused.content.decode()
    assert refused.status_code == 409
    for shown in ("By Bo", "as before", "cat.png"):
        assert shown in text
    assert "hunter2" not in text
    assert "<button" not in text
    assert "distlock_edit_choice" in bo.client.post(path, {**fields, "title": "By Bo"}).content.decode()


def test_retry_keeps_the_version_of_the_form(ada: Person, bo: Person, article: Article) -> None:
    path = f"/edit/{article.pk}/"
    mine, theirs = bo.open(path), ada.open(path)
    lease = ada.claim(theirs["distlock_edit"])
    again = hidden(bo.client.post(path, sent(mine, body="By Bo.")))
    assert again["distlock_edit"] == mine["distlock_edit"]
    Article.objects.update(body="By a command.")
    ada.release([theirs["distlock_edit"]], [lease])
    assert bo.client.post(path, sent(again, body="By Bo.", distlock_edit_choice="retry")).status_code == 409


def test_a_function_cannot_show_its_form_again(ada: Person, boss: Person, article: Article) -> None:
    """A button that says so would save."""
    path = f"/function/{article.pk}/"
    for person, buttons in ((ada, []), (boss, ["overwrite"])):
        fields = person.open(path)
        Article.objects.update(body=f"Before {person.tab}.")
        text = person.client.post(path, sent(fields, body="Mine.")).content.decode()
        assert re.findall(r'<button[^>]* value="(\w+)"', text) == buttons


def test_other_answers(ada: Person, bo: Person, article: Article) -> None:
    """The view's own, and that for programs."""
    ada.claim(ada.open(f"/own/{article.pk}/")["distlock_edit"])
    refused = bo.client.post(f"/own/{article.pk}/", sent({}))
    assert (refused.status_code, refused.content) == (418, b"Ada is editing this now.")
    refused = bo.client.post(f"/function/{article.pk}/", sent({}), headers={"Accept": "application/json"})
    assert (refused.status_code, refused["Content-Type"]) == (423, "application/problem+json")
    assert refused.json()["holder"] == "Ada"


def test_an_async_view(ada: Person, bo: Person, article: Article) -> None:
    path = f"/async/{article.pk}/"
    ada.client.raise_request_exception = False
    assert ada.client.post(path, {"body": "By Ada.", "break": "1"}).status_code == 500
    assert Article.objects.get().body == "On Saturday.", "an error rolls back"
    assert ada.client.post(path, {"body": "By Ada."}).status_code == 302
    assert row(article).changed_by == "Ada"
    ada.claim(ada.open(f"/edit/{article.pk}/")["distlock_edit"])
    assert bo.client.post(path, {"body": "By Bo."}).status_code == 409
    assert Article.objects.get().body == "By Ada."


@pytest.mark.parametrize("kind", ["edit", "function"])
def test_the_setting_says_from_whom_one_may_take_over(
    ada: Person, bo: Person, boss: Person, article: Article, settings: Any, kind: str
) -> None:
    """Also with the button of a refused save."""
    of_ada = principal_of_user(ada.user)
    settings.DISTLOCK_EDITING = {"TAKEOVER": lambda user, obj, holder: holder != of_ada}
    path = f"/{kind}/{article.pk}/"
    fields = {"title": "By the boss", "body": "y", **boss.open(path)}
    lease = ada.claim(grant := ada.open(path)["distlock_edit"])
    assert boss.ask("takeover", fields["distlock_edit"], lease="b" * 32)["reason"] == "permission"
    refused = boss.client.post(path, fields)
    assert "Take over" not in refused.content.decode()
    assert boss.client.post(path, {**fields, "distlock_edit_choice": "overwrite"}).status_code == 409
    assert Article.objects.get().title == article.title
    ada.release([grant], [lease])
    bo.claim(bo.open(path)["distlock_edit"])
    assert boss.client.post(path, {**fields, "distlock_edit_choice": "overwrite"}).status_code == 302


@pytest.mark.parametrize("kind", ["quiet", "counted"])
def test_an_answer_that_is_no_redirect(ada: Person, bo: Person, article: Article, kind: str) -> None:
    """A view for a script answers without a redirect: its save counts all the same."""
    path = f"/{kind}/{article.pk}/"
    theirs = bo.open(f"/edit/{article.pk}/")
    assert ada.client.post(path, {"title": article.title, "body": article.body}).status_code in (200, 204)
    assert bo.client.post(f"/edit/{article.pk}/", {"title": "x", "body": "y", **theirs}).status_code == 409


def test_the_mode_off(ada: Person, article: Article, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"MODE": "off"}
    with CaptureQueriesContext(connection) as queries:
        for kind in ("edit", "publish", "function", "counted"):
            path = f"/{kind}/{article.pk}/"
            if kind != "counted":
                assert hidden(ada.client.get(path)) == {}
                assert ada.client.post(path, {"title": "", "body": "y"}).status_code == 200
            done = ada.client.post(path, {"title": kind, "body": "y"})
            assert done.status_code == (200 if kind == "counted" else 302)
            assert Article.objects.get().title == kind
        assert ada.client.post(f"/delete/{article.pk}/").status_code == 302
    assert not [query for query in queries if "editlease" in query["sql"]]
    assert not Article.objects.exists()


def test_get_object_may_lock_the_row(
    ada: Person, article: Article, atomic_requests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ATOMIC_REQUESTS it is always in a transaction, which select_for_update() needs."""
    found: list[bool] = []

    def get_queryset(view: Any) -> Any:
        found.append(connection.in_atomic_block)
        return Article.objects.all()

    monkeypatch.setattr(site.Edit, "get_queryset", get_queryset)
    path = f"/edit/{article.pk}/"
    assert ada.client.post(path, sent(ada.open(path))).status_code == 302
    assert found == [atomic_requests] * 2


@pytest.mark.usefixtures("atomic_requests")
def test_locks_in_another_database_with_atomic_requests(
    ada: Person, article: Article, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISTLOCK_EDITING = {"DATABASE": "postgres"}
    monkeypatch.setitem(connections.settings["postgres"], "ATOMIC_REQUESTS", True)
    try:
        for kind in ("edit", "function"):
            path = f"/{kind}/{article.pk}/"
            assert ada.client.post(path, sent(ada.open(path), body="By Ada.")).status_code == 302
        api = ada.client.patch(f"/api/{article.pk}/", {"body": "By the API."}, content_type="application/json")
        assert api.status_code == 200
    finally:
        EditLeaseRow.rows.using("postgres").all().delete()


# the database gives up because of other transactions: once more, then a page; never an error, no message twice

both = pytest.mark.usefixtures("atomic_requests")


def failure() -> OperationalError:
    return OperationalError("database is locked")


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the next saves of the form fail after they have written."""
    left: list[int] = []
    save = site.ArticleForm.save

    def failing_save(form: Any, commit: bool = True) -> Any:
        found = save(form, commit)
        if left:
            left.pop()
            raise failure()
        return found

    monkeypatch.setattr(site.ArticleForm, "save", failing_save)
    return left


def filled(person: Person, path: str, **more: Any) -> dict[str, Any]:
    return {"title": "A bridge opens", "body": "By Ada.", **person.open(path), **more}


@pytest.mark.parametrize("kind", ["cheerful", "function"])
@both
def test_once_more_then_a_page(ada: Person, article: Article, failing: list[int], kind: str) -> None:
    path = f"/{kind}/{article.pk}/"
    fields = filled(ada, path)
    failing.extend([1, 1])
    refused = ada.client.post(path, fields)
    assert refused.status_code == 409
    for text in ("Others are saving this at the same moment.", "Try again", "By Ada."):
        assert text in refused.content.decode()
    assert Article.objects.get().body == "On Saturday."
    failing.append(1)
    done = ada.client.post(path, fields)
    assert done.status_code == 302
    assert Article.objects.get().body == "By Ada."
    if kind == "cheerful":
        assert [str(message) for message in get_messages(done.wsgi_request)] == ["Saved."]


@both
def test_no_message_of_a_save_that_was_rolled_back(
    ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database may give up at the COMMIT, when the view has said "Saved."."""
    form_valid = site.Cheerful.form_valid

    def fail_late(view: Any, form: Any) -> Any:
        form_valid(view, form)
        raise failure()

    monkeypatch.setattr(site.Cheerful, "form_valid", fail_late)
    path = f"/cheerful/{article.pk}/"
    refused = ada.client.post(path, filled(ada, path))
    assert refused.status_code == 409
    assert not list(get_messages(refused.wsgi_request))


def test_a_file_is_not_saved_twice(ada: Person, article: Article, failing: list[int]) -> None:
    path = f"/cheerful/{article.pk}/"
    failing.append(1)
    refused = ada.client.post(path, filled(ada, path, picture=SimpleUploadedFile("cat.png", b"cat")))
    assert refused.status_code == 409
    assert Article.objects.get().body == "On Saturday."


def test_programs_get_423(ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    def update(serializer: Any, instance: Any, data: Any) -> Any:
        raise failure()

    monkeypatch.setattr(site.ArticleSerializer, "update", update)
    refused = ada.client.patch(f"/api/{article.pk}/", {"body": "x"}, content_type="application/json")
    assert (refused.status_code, refused.json()["code"]) == (423, "saving")
