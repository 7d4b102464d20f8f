"""The scene of two people who edit one article: its pages in one process. Browsers: tests/editing/browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse

from testproject.articles.models import Article
from testproject.articles.people import PEOPLE, person

if TYPE_CHECKING:
    from collections.abc import Iterator

SENT = {"title": "A bridge opens", "section": "news"}


@pytest.fixture
def article(databases: None) -> Iterator[Article]:
    yield Article.objects.create(title="A bridge opens", body="On Saturday.")
    Article.objects.all().delete()
    for slug in PEOPLE:
        person(slug).delete()


def be(slug: str) -> Client:
    client = Client()
    assert client.post(reverse("articles-as", args=[slug])).url == reverse("articles")
    return client


def hidden(page: str) -> dict[str, str]:
    return dict(re.findall(r'<input type="hidden" name="(distlock_edit\w*)" value="([^"]*)"', page))


def test_one_click_makes_a_person(article: Article) -> None:
    for slug, name in PEOPLE.items():
        assert f'<strong id="me">{name}</strong>' in be(slug).get(reverse("articles")).text
    assert Client().post("/articles/as/eve/").status_code == 404
    assert Client().get("/articles/as/ada/").status_code == 405


def test_strangers_are_asked_to_be_somebody(article: Article) -> None:
    for name in ("articles-edit", "articles-plain"):
        assert Client().get(reverse(name, args=[article.pk])).url.startswith(reverse("articles"))


def test_without_a_lock_the_second_save_destroys_the_first(article: Article) -> None:
    address = reverse("articles-plain", args=[article.pk])
    ada, bo = be("ada"), be("bo")
    for client in (ada, bo):
        assert "distlock_edit" not in client.get(address).text
    for client, body in ((ada, "By Ada."), (bo, "By Bo.")):
        assert client.post(address, {**SENT, "body": body}).url == reverse("articles")
    article.refresh_from_db()
    assert article.body == "By Bo."


def test_with_a_lock_the_second_save_shows_both(article: Article) -> None:
    address = reverse("articles-edit", args=[article.pk])
    ada, bo = be("ada"), be("bo")
    forms = [(client, hidden(client.get(address).text)) for client in (ada, bo)]
    answers = [
        client.post(address, {**SENT, **fields, "body": f"By {name}."})
        for (client, fields), name in zip(forms, PEOPLE.values(), strict=True)
    ]
    assert answers[0].url == reverse("articles")
    assert answers[1].status_code == 409
    assert "By Ada." in answers[1].text
    assert "By Bo." in answers[1].text
    article.refresh_from_db()
    assert article.body == "By Ada."


def test_the_list_names_the_editor(article: Article, settings: Any) -> None:
    settings.DISTLOCK_EDITING = {"WHEN": "open"}
    ada, bo = be("ada"), be("bo")
    ada.get(reverse("articles-edit", args=[article.pk]))
    assert "<td>Ada</td>" in bo.get(reverse("articles")).text


def test_the_people_may_edit_articles_in_the_admin_and_nothing_else(article: Article) -> None:
    ada = be("ada")
    assert "distlock_edit" in ada.get(reverse("admin:articles_article_change", args=[article.pk])).text
    assert ada.get("/admin/auth/user/").status_code == 403


def test_the_demo_names_the_address() -> None:
    from testproject.registration.management.commands.demo import scenes

    assert re.search(
        r"^Articles: http://127\.0\.0\.1:1/articles/   open one article", scenes("http://127.0.0.1:1/"), re.M
    )
