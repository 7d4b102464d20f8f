"""Class-based and function views under edit locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from testproject.articles.models import Article
from tests.editing.people import hidden, is_held

if TYPE_CHECKING:
    from tests.editing.people import Person


def sent(fields: dict[str, str], **more: str) -> dict[str, str]:
    return {"title": "A bridge opens", "body": "On Saturday.", "section": "news", **fields, **more}


def test_the_second_save_is_refused_and_keeps_the_text(ada: Person, bo: Person, article: Article) -> None:
    path = f"/articles/{article.pk}/"
    first, second = ada.open(path), bo.open(path)
    assert ada.client.post(path, sent(first, body="By Ada.")).status_code == 302
    refused = bo.client.post(path, sent(second, body="By Bo."))
    assert refused.status_code == 409
    text = refused.content.decode()
    assert "Ada has saved this since you opened the form." in text
    assert "By Ada." in text
    assert "By Bo." in text
    article.refresh_from_db()
    assert article.body == "By Ada."
    again = bo.client.post(path, sent(hidden(refused), body="By Bo.", distlock_edit_choice="review"))
    assert again.status_code == 200
    assert "if you save it, it replaces theirs" in again.content.decode()
    assert bo.client.post(path, sent(hidden(again), body="By both.")).status_code == 302
    article.refresh_from_db()
    assert article.body == "By both."


def test_a_save_is_refused_while_another_user_holds_the_lock(ada: Person, bo: Person, article: Article) -> None:
    path = f"/articles/{article.pk}/"
    first, second = ada.open(path), bo.open(path)
    assert not is_held(article)
    ada.claim(first["distlock_edit"])
    assert is_held(article)
    refused = bo.client.post(path, sent(second, body="By Bo."))
    assert refused.status_code == 409
    assert "Ada is editing this now." in refused.content.decode()
    assert Article.objects.get().body == "On Saturday."
