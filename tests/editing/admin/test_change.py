"""The change form of the admin under an edit lock: saves, inlines, popups, deletion, takeover."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse

from testproject.articles.models import Article, Source
from tests.editing.people import hidden, is_held, row

if TYPE_CHECKING:
    from tests.editing.people import Person


def address(article: Article, page: str = "change") -> str:
    return reverse(f"admin:articles_article_{page}", args=[article.pk])


def sent(fields: dict[str, str], *sources: Source, **more: str) -> dict[str, str]:
    """What the change form sends."""
    management = {
        "sources-TOTAL_FORMS": str(len(sources)),
        "sources-INITIAL_FORMS": str(len(sources)),
        "sources-MIN_NUM_FORMS": "0",
        "sources-MAX_NUM_FORMS": "1000",
    }
    for number, source in enumerate(sources):
        management |= {
            f"sources-{number}-id": str(source.pk),
            f"sources-{number}-article": str(source.article_id),
            f"sources-{number}-name": source.name,
        }
    return {"title": "A bridge opens", "body": "On Saturday.", "section": "news", **management, **fields, **more}


def test_the_form_has_the_lock_and_no_autocomplete(ada: Person, article: Article) -> None:
    text = ada.client.get(address(article)).content.decode()
    form = text[text.index('id="article_form"') : text.index("data-distlock-edit")]
    assert 'autocomplete="off"' in form.split(">")[0]
    assert 'data-endpoint="/admin/articles/article/distlock-editing/beat/"' in text
    assert not is_held(article)


def test_the_second_save_is_refused_and_keeps_the_text(ada: Person, bo: Person, article: Article) -> None:
    first, second = ada.open(address(article)), bo.open(address(article))
    assert ada.client.post(address(article), sent(first, body="By Ada.")).status_code == 302
    refused = bo.client.post(address(article), sent(second, body="By Bo.", _continue="1"))
    assert refused.status_code == 409
    text = refused.content.decode()
    assert "By Ada." in text
    assert "By Bo." in text
    assert 'name="_continue"' in text
    again = bo.client.post(address(article), sent(hidden(refused), body="By Bo.", distlock_edit_choice="review"))
    assert again.status_code == 200
    assert "By Bo." in again.content.decode()
    assert Article.objects.get().body == "By Ada."
    assert bo.client.post(address(article), sent(hidden(again), body="By Bo.")).status_code == 302
    assert Article.objects.get().body == "By Bo."


def test_a_change_of_an_inline_is_a_change(ada: Person, bo: Person, article: Article) -> None:
    source = Source.objects.create(article=article, name="The mayor")
    first, second = ada.open(address(article)), bo.open(address(article))
    source.name = "The council"
    assert ada.client.post(address(article), sent(first, source)).status_code == 302
    source.name = "The baker"
    refused = bo.client.post(address(article), sent(second, source))
    assert refused.status_code == 409
    text = refused.content.decode()
    assert "The council" in text
    assert "The baker" in text
    assert Source.objects.get().name == "The council"


def test_a_form_with_errors_carries_its_version_on(ada: Person, bo: Person, article: Article) -> None:
    fields = bo.open(address(article))
    wrong = bo.client.post(address(article), sent(fields, title=""))
    assert wrong.status_code == 200
    Article.objects.update(body="By other code.")
    assert hidden(wrong)["distlock_edit"] == fields["distlock_edit"]
    assert bo.client.post(address(article), sent(hidden(wrong))).status_code == 409


def test_a_popup_counts_as_a_save(ada: Person, bo: Person, article: Article) -> None:
    fields = bo.open(address(article))
    popup = ada.open(f"{address(article)}?_popup=1")
    saved = ada.client.post(f"{address(article)}?_popup=1", sent(popup, body="In a popup.", _popup="1"))
    assert saved.status_code == 200
    assert row(article).changed_by == "Ada"
    assert bo.client.post(address(article), sent(fields)).status_code == 409


def test_a_field_that_is_no_key_finds_no_object(ada: Person, article: Article) -> None:
    for field in ("title", "nonsense"):
        sent_on = {**sent(ada.open(address(article))), "_to_field": field}
        assert ada.client.post(address(article), sent_on).status_code == 400
        assert ada.client.get(f"{address(article)}?_to_field={field}").status_code == 400


def test_without_the_field_nobody_else_may_hold_the_lock(ada: Person, bo: Person, article: Article) -> None:
    """A suite that was written for a plain admin posts without it."""
    assert bo.client.post(address(article), sent({}, body="By a script.")).status_code == 302
    ada.claim(ada.open(address(article))["distlock_edit"])
    assert bo.client.post(address(article), sent({}, body="Again.")).status_code == 409
    assert Article.objects.get().body == "By a script."


def test_an_object_that_was_deleted_is_a_page_with_the_text(ada: Person, bo: Person, article: Article) -> None:
    fields = bo.open(address(article))
    article.delete()
    refused = bo.client.post(address(article), sent(fields, body="By Bo."))
    assert refused.status_code == 409
    assert "By Bo." in refused.content.decode()
    assert "deleted" in refused.content.decode()
    assert not Article.objects.exists()


def test_overwriting_needs_a_permission(ada: Person, bo: Person, boss: Person, article: Article) -> None:
    ada.claim(ada.open(address(article))["distlock_edit"])
    for person, name in ((bo, "Bo"), (boss, "boss")):
        fields = person.open(address(article))
        refused = person.client.post(address(article), sent(fields, body=f"By {name}."))
        assert refused.status_code == 409
        offered = "Take over and save mine" in refused.content.decode()
        assert offered == (person is boss)
        done = person.client.post(
            address(article), sent(hidden(refused), body=f"By {name}.", distlock_edit_choice="overwrite")
        )
        assert done.status_code == (302 if person is boss else 409)
    assert Article.objects.get().body == "By boss."
    messages = [str(entry) for entry in LogEntry.objects.all()]
    assert any("Took over the editing from Ada" in message for message in messages), messages


class TestDeletion:
    def test_it_is_refused_while_another_user_edits_and_after_a_change(
        self, ada: Person, bo: Person, article: Article
    ) -> None:
        fields = bo.open(address(article, "delete"))
        lease = ada.claim(grant := ada.open(address(article))["distlock_edit"])
        refused = bo.client.post(address(article, "delete"), {"post": "yes", **fields})
        assert refused.status_code == 409
        assert "Nothing was done" in refused.content.decode()
        ada.release([grant], [lease])
        Article.objects.update(body="By Ada.")
        assert bo.client.post(address(article, "delete"), {"post": "yes", **fields}).status_code == 409
        assert Article.objects.exists()

    def test_it_goes_through(self, ada: Person, bo: Person, article: Article) -> None:
        lease = bo.claim(grant := bo.open(address(article))["distlock_edit"])
        fields = bo.open(address(article, "delete"))
        assert bo.client.post(address(article, "delete"), {"post": "yes", **fields}).status_code == 302
        assert not Article.objects.exists()
        assert bo.ask("renew", grant, lease=lease)["reason"] == "deleted"


class TestTakeover:
    def test_it_is_logged_and_the_holder_is_told(self, ada: Person, boss: Person, article: Article) -> None:
        grant = ada.open(address(article))["distlock_edit"]
        lease = ada.claim(grant)
        theirs = boss.open(address(article))["distlock_edit"]
        assert boss.ask("claim", theirs, lease=secrets.token_hex(16))["can_take_over"]
        taken = boss.ask("takeover", theirs, lease=secrets.token_hex(16), reason="Deadline\nat noon")
        assert taken["state"] == "held"
        lost = ada.ask("renew", grant, lease=lease)
        assert (lost["state"], lost["reason"], lost["by"]) == ("lost", "taken_over", "Boss")
        entry = LogEntry.objects.get()
        assert "Ada" in entry.change_message
        assert "Deadline at noon" in entry.change_message


@pytest.mark.parametrize("mode", ["warn", "off"])
def test_modes_that_save(ada: Person, bo: Person, article: Article, settings: Any, mode: str) -> None:
    settings.DISTLOCK_EDITING = {"MODE": mode}
    fields = bo.open(address(article))
    assert bool(fields) == (mode == "warn")
    Article.objects.update(body="By other code.")
    saved = bo.client.post(address(article), sent(fields, body="By Bo."), follow=True)
    assert saved.status_code == 200
    assert Article.objects.get().body == "By Bo."
    assert ("This was saved, although" in saved.content.decode()) == (mode == "warn")
