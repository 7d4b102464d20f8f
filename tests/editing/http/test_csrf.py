"""A log-in in another tab rotates the CSRF token: the form that is refused then keeps its text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from testproject.articles.models import Article
from tests.editing.people import Person, hidden

HOST = {"Origin": "http://testserver"}
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')


@pytest.fixture
def strict(ada: Person, settings: Any) -> Person:
    settings.CSRF_FAILURE_VIEW = "django_distlock.editing.http.csrf.csrf_failure"
    assert ada.user is not None
    return Person(ada.user, enforce_csrf_checks=True)


def test_the_text_is_kept_and_sent_again(strict: Person, article: Article) -> None:
    path = f"/articles/{article.pk}/"
    page = strict.client.get(path)
    old = TOKEN.findall(page.content.decode())[0]
    sent = {"title": "x", "body": "By Ada.", "section": "news", **hidden(page)}
    strict.client.cookies.pop("csrftoken")
    strict.client.get(path)  # another token
    refused = strict.client.post(path, {**sent, "csrfmiddlewaretoken": old}, headers=HOST)
    assert refused.status_code == 403
    text = refused.content.decode()
    assert "By Ada." in text
    assert refused["X-Frame-Options"] == "DENY"
    again = {**sent, **hidden(refused), "csrfmiddlewaretoken": TOKEN.findall(text)[0]}
    assert strict.client.post(path, again, headers=HOST).status_code == 302
    assert Article.objects.get().body == "By Ada."


def test_other_forms_get_djangos_page(strict: Person, article: Article) -> None:
    path = f"/articles/{article.pk}/"
    sent = {"body": "Chosen by a stranger.", **hidden(strict.client.get(path)), "csrfmiddlewaretoken": "x" * 32}
    for spoil, headers in (
        ({"distlock_edit": ""}, HOST),
        ({"distlock_edit": "forged"}, HOST),
        ({}, {"Origin": "http://evil.example"}),
        ({}, {}),
    ):
        refused = strict.client.post(path, {**sent, **spoil}, headers=headers)
        assert refused.status_code == 403
        assert "Chosen by a stranger." not in refused.content.decode()
