"""The change form of the admin under an edit lock: saves, inlines, popups, deletion, takeover."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.forms import modelform_factory

from django_distlock.editing.signals import edit_taken_over
from testproject.articles.models import Article, Source
from tests.editing.people import CHOICE, GRANT, Person, body, controls, hidden, is_held, names, refused
from tests.editing.store.desks import hearing


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets something of the admin of articles."""
    return lambda name, value: monkeypatch.setattr(type(admin.site._registry[Article]), name, value)


@pytest.fixture
def path(article: Article) -> str:
    return f"/admin/articles/article/{article.pk}/change/"


def test_e8_the_form_has_the_lock_and_no_autocomplete(ada: Person, article: Article, path: str) -> None:
    text = ada.client.get(path).content.decode()
    form = text[text.index('id="article_form"') : text.index("data-distlock-edit")]
    assert 'autocomplete="off"' in form.split(">")[0]
    assert f'data-endpoint="{path}"' in text
    assert not is_held(article)


def test_the_second_save_is_refused_and_keeps_the_text(ada: Person, bo: Person, article: Article, path: str) -> None:
    source = Source.objects.create(article=article, name="The mayor")
    first, second = ada.open(path), bo.open(path)
    source.name = "The council"
    assert ada.save(path, first, source).status_code == 302
    source.name = "The baker"
    answer = bo.save(path, second, source, body="By Bo.", _continue="1")
    refused(
        answer, "Ada has saved this since you opened the form.", "Saved now: The council", "Saved now: On Saturday."
    )
    assert (Source.objects.get().name, body()) == ("The council", "On Saturday.")
    assert bo.client.post(path, controls(answer, "article_form")).status_code == 302, "the same again replaces theirs"
    assert (Source.objects.get().name, body()) == ("The baker", "By Bo.")


def test_a_form_that_get_form_has_not_made_is_not_saved_either(
    ada: Person, bo: Person, path: str, patched: Any
) -> None:
    """It can not be shown with errors: a page keeps the text."""
    patched("get_form", lambda self, request, obj=None, **kwargs: modelform_factory(Article, fields=["title", "body"]))
    fields = bo.open(path)
    assert ada.save(path, body="By Ada.").status_code == 302
    refused(bo.save(path, fields, body="By Bo."), "By Bo.", "Not saved yet")
    assert body() == "By Ada."


def test_e6_a_form_with_errors_carries_its_version_on(bo: Person, article: Article, path: str) -> None:
    fields = bo.open(path)
    wrong = bo.save(path, fields, title="")
    assert wrong.status_code == 200
    Article.objects.update(body="By other code.")
    assert hidden(wrong)[GRANT] == fields[GRANT]
    refused(bo.save(path, hidden(wrong)))


def test_what_is_posted_without_the_form(ada: Person, bo: Person, path: str) -> None:
    """By a suite that was written for a plain admin, for example: nobody else may hold the lock."""
    for field in ("title", "nonsense"):  # no key finds no object
        assert ada.save(path, _to_field=field).status_code == 400
        assert ada.client.get(f"{path}?_to_field={field}").status_code == 400
    assert bo.save(path, {}, body="By a script.").status_code == 302
    ada.hold(path)
    refused(bo.save(path, {}, body="Again."))
    assert body() == "By a script."


def test_e7_overwriting_needs_a_permission(ada: Person, bo: Person, boss: Person, path: str) -> None:
    ada.hold(path)
    for person, status in ((bo, 409), (boss, 302)):
        answer = person.save(path, body=f"By {person.user}.")
        refused(answer, "Ada is editing this now.", f"By {person.user}.")
        with hearing(edit_taken_over) as heard:
            done = person.save(path, hidden(answer), body=f"By {person.user}.", **{CHOICE: "overwrite"})
        assert done.status_code == status
        assert [told["before"].label for told in heard] == ([] if status == 409 else ["Ada"])
    assert body() == "By boss."
    assert "Took over the editing from Ada" in " ".join(map(str, LogEntry.objects.all()))


def test_a_deletion(ada: Person, bo: Person, article: Article, path: str) -> None:
    """It is refused while another user edits, and after a change."""
    page = path.replace("change", "delete")
    fields, held = bo.open(page), ada.hold(path)
    refused(bo.client.post(page, {"post": "yes", **fields}), "Nothing was done")
    ada.give_back(held)
    Article.objects.update(body="By Ada.")
    refused(bo.client.post(page, {"post": "yes", **fields}))
    mine = bo.hold(path)
    assert bo.client.post(page, {"post": "yes", **bo.open(page)}).status_code == 302
    assert not Article.objects.exists()
    assert bo.renew(mine)["reason"] == "deleted"


def test_who_may_delete_and_not_change_has_the_lock_of_that_page_alone(bo: Person, article: Article, path: str) -> None:
    page = path.replace("change", "delete")
    bo.user.user_permissions.remove(Permission.objects.get(codename="change_article"))
    grant = bo.open(page)[GRANT]
    assert bo.ask("claim", grant)["state"] == "held"
    assert bo.ask("claim", grant, path=path)["reason"] == "permission"
    bo.user.user_permissions.remove(Permission.objects.get(codename="delete_article"))
    assert bo.ask("claim", grant)["reason"] == "permission"


def test_e18_a_takeover_is_logged_and_the_holder_is_told(ada: Person, boss: Person, path: str) -> None:
    held, theirs = ada.hold(path), boss.open(path)[GRANT]
    assert boss.ask("claim", theirs)["can_take_over"]
    with hearing(edit_taken_over) as heard:
        assert boss.ask("takeover", theirs, reason="Deadline\nat noon")["state"] == "held"
    assert [(told["before"].label, told["reason"]) for told in heard] == [("Ada", "Deadline at noon")]
    lost = ada.renew(held)
    assert (lost["state"], lost["reason"], lost["by"]) == ("lost", "taken_over", "Boss")
    message = LogEntry.objects.get().change_message
    assert "Ada" in message
    assert "Deadline at noon" in message


def test_e10_the_mode_warn_saves_and_says_so(bo: Person, article: Article, path: str, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"MODE": "warn"}
    fields = bo.open(path)
    Article.objects.update(body="By other code.")
    bo.save(path, fields, body="By Bo.")
    assert body() == "By Bo."
    assert "This was saved, although" in bo.client.get("/admin/").content.decode()


# rows of inlines that were deleted while somebody typed: no text is lost, and the form can be saved


def opened(person: Person, path: str) -> dict[str, Any]:
    return controls(person.client.get(path), "article_form")


def save_again(person: Person, path: str, page: Any, **more: str) -> list[str]:
    """Save what it shows; the names that there are now."""
    assert person.client.post(path, controls(page, "article_form") | more).status_code == 302
    return names()


@pytest.mark.parametrize(("gone", "typed"), [(0, 0), (0, 2), (2, 1), (None, 1)])
def test_back_to_the_form(
    bo: Person, article: Article, path: str, sources: list[Source], gone: int | None, typed: int
) -> None:
    fields = opened(bo, path) | {f"sources-{typed}-name": "by Bo", "sources-3-name": "a new one by Bo"}
    if gone is not None:
        sources[gone].delete()
    Source.objects.create(article=article, name="a new one by Ada")
    page = bo.client.post(path, fields)
    text = refused(page)
    expected = ["one", "three", "two"]
    expected[typed] = "by Bo"
    for name in (*expected, "a new one by Bo"):
        assert f'value="{name}"' in text, name
    assert ("as a new row" in text) == (gone is not None)
    if (gone, typed) == (0, 2):  # the admin names the object of each row beside it
        first, second = text.split('id="sources-0"')[1].split('id="sources-1"')[:2]
        assert ("three" in first, "two" in first) == (True, False)
        assert "by Bo" in second.split('id="sources-2"')[0]
    assert save_again(bo, path, page) == sorted([*expected, "a new one by Bo", "a new one by Ada"])
    kept = [source.pk for index, source in enumerate(sources) if index != gone]
    assert Source.objects.filter(pk__in=kept).count() == len(kept)


def test_rows_that_were_deleted_can_stay_so(bo: Person, path: str, sources: list[Source]) -> None:
    """One that both have deleted, and one that is taken out of the form that is shown again."""
    fields = opened(bo, path) | {"sources-1-DELETE": "on", "body": "By Bo."}
    for source in sources[:2]:
        source.delete()
    page = bo.client.post(path, fields)
    form = controls(page, "article_form")
    assert form["sources-INITIAL_FORMS"] == ["1"]
    last = f"sources-{int(form['sources-TOTAL_FORMS'][0]) - 1}-name"
    assert form[last] == ["one"]
    assert save_again(bo, path, page, **{last: ""}) == ["two"]
    assert body() == "By Bo."


def test_somebody_who_may_not_add_rows(bo: Person, path: str, sources: list[Source]) -> None:
    bo.user.user_permissions.remove(Permission.objects.get(codename="add_source"))
    fields = opened(bo, path) | {"sources-0-name": "by Bo"}
    sources[0].delete()
    page = bo.client.post(path, fields)
    for text in ('value="by Bo"', "cannot be saved again"):
        assert text in page.content.decode()
    assert save_again(bo, path, page) == ["three", "two"]
