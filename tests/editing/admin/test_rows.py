"""Rows of inlines that were deleted while somebody typed: no text is lost, and the form can be saved."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse

from testproject.articles.models import Article, Source

if TYPE_CHECKING:
    from tests.editing.people import Person


class Controls(HTMLParser):
    """What a browser would send of the form with the id, or of the first form with a choice of the lock."""

    def __init__(self, response: Any, form: str | None = None) -> None:
        super().__init__()
        self.fields: dict[str, list[str]] = {}
        self._form, self._inside = form, False
        self._select = self._area = ""
        self.feed(response.content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        name, value = found.get("name") or "", found.get("value") or ""
        if tag == "form":
            self._inside = found.get("id") == self._form
        elif not self._inside:
            return
        elif tag == "textarea":
            self._area = name
            self.fields.setdefault(name, []).append("")
        elif tag == "select":
            self._select = name
        elif tag == "option" and "selected" in found and self._select:
            self.fields.setdefault(self._select, []).append(value)
        elif tag == "input" and name and found.get("type") not in ("submit", "button", "checkbox"):
            self.fields.setdefault(name, []).append(value)

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area][-1] += data.removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""
        elif tag == "select":
            self._select = ""
        elif tag == "form":
            self._inside = False


def address(article: Article) -> str:
    return reverse("admin:articles_article_change", args=[article.pk])


def opened(person: Person, article: Article) -> dict[str, list[str]]:
    return Controls(person.client.get(address(article)), "article_form").fields


def names() -> list[str]:
    return list(Source.objects.order_by("name").values_list("name", flat=True))


def refused(person: Person, article: Article, fields: dict[str, Any], choice: str = "review") -> dict[str, Any]:
    """The fields that the button of the refused save sends."""
    reply = person.client.post(address(article), fields)
    assert reply.status_code == 409
    found = Controls(reply).fields
    assert f'value="{choice}"' in reply.content.decode()
    return {**found, "distlock_edit_choice": choice}


@pytest.fixture
def sources(article: Article) -> list[Source]:
    return [Source.objects.create(article=article, name=name) for name in ("one", "three", "two")]


@pytest.mark.parametrize(("gone", "typed"), [(0, 0), (0, 2), (2, 1), (None, 1)])
def test_back_to_the_form(bo: Person, article: Article, sources: list[Source], gone: int | None, typed: int) -> None:
    fields: dict[str, Any] = opened(bo, article)
    fields[f"sources-{typed}-name"] = "by Bo"
    fields["sources-3-name"] = "a new one by Bo"
    if gone is not None:
        sources[gone].delete()
    Source.objects.create(article=article, name="a new one by Ada")
    again = bo.client.post(address(article), refused(bo, article, fields))
    assert again.status_code == 200
    text = again.content.decode()
    expected = ["one", "three", "two"]
    expected[typed] = "by Bo"
    for name in (*expected, "a new one by Bo"):
        assert f'value="{name}"' in text, name
    assert ("as a new row" in text) == (gone is not None)
    if (gone, typed) == (0, 2):  # the admin names the object of each row beside it
        first, second = text.split('id="sources-0"')[1].split('id="sources-1"')[:2]
        assert ("three" in first, "two" in first) == (True, False)
        assert "by Bo" in second.split('id="sources-2"')[0]
    form = Controls(again, "article_form").fields
    assert bo.client.post(address(article), form).status_code == 302
    assert names() == sorted([*expected, "a new one by Bo", "a new one by Ada"])
    kept = [source for index, source in enumerate(sources) if index != gone]
    assert all(Source.objects.filter(pk=source.pk).exists() for source in kept)


def test_a_row_that_both_have_deleted_stays_deleted(bo: Person, article: Article, sources: list[Source]) -> None:
    fields: dict[str, Any] = opened(bo, article)
    fields |= {"sources-1-DELETE": "on", "sources-2-name": "by Bo"}
    sources[1].delete()
    again = bo.client.post(address(article), refused(bo, article, fields))
    assert bo.client.post(address(article), Controls(again, "article_form").fields).status_code == 302
    assert names() == ["by Bo", "one"]


def test_a_row_that_was_deleted_can_be_left_out(bo: Person, article: Article, sources: list[Source]) -> None:
    fields: dict[str, Any] = opened(bo, article)
    fields["body"] = "By Bo."
    sources[0].delete()
    again = bo.client.post(address(article), refused(bo, article, fields))
    form: dict[str, Any] = Controls(again, "article_form").fields
    assert form["sources-INITIAL_FORMS"] == ["2"]
    last = int(form["sources-TOTAL_FORMS"][0]) - 1
    assert form[f"sources-{last}-name"] == ["one"]
    form[f"sources-{last}-name"] = ""
    assert bo.client.post(address(article), form).status_code == 302
    assert names() == ["three", "two"]
    assert Article.objects.get().body == "By Bo."


def test_somebody_who_may_not_add_rows(bo: Person, article: Article, sources: list[Source]) -> None:
    bo.user.user_permissions.remove(Permission.objects.get(codename="add_source"))
    fields: dict[str, Any] = opened(bo, article)
    fields["sources-0-name"] = "by Bo"
    sources[0].delete()
    again = bo.client.post(address(article), refused(bo, article, fields))
    text = again.content.decode()
    assert 'value="by Bo"' in text
    assert "cannot be saved again" in text
    assert bo.client.post(address(article), Controls(again, "article_form").fields).status_code == 302
    assert names() == ["three", "two"]


def test_replacing_theirs_with_mine(boss: Person, article: Article, sources: list[Source]) -> None:
    fields: dict[str, Any] = opened(boss, article)
    fields["sources-2-name"] = "by the boss"
    sources[0].delete()
    sent = refused(boss, article, fields, "overwrite")
    assert boss.client.post(address(article), sent).status_code == 302
    assert names() == ["by the boss", "one", "three"]
