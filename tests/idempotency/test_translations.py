"""The pages that visitors see come in their language, and say so; without a catalog they are English, and say that."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils import translation

from django_distlock import LockNotAcquired
from django_distlock.idempotency import decisions
from django_distlock.idempotency.http import responses
from django_distlock.middleware import LockBusyMiddleware

AGAIN = {"action": "/form/", "fields": [("note", "1")], "key_field": ""}
PAGES: dict[str, Any] = {
    "busy": lambda request: LockBusyMiddleware(HttpResponse).process_exception(request, LockNotAcquired("taken")),
    **{
        f"{answer.code}, {answer.text}, {action}": lambda request, answer=answer, action=action: responses.given(
            answer, request, True, location="/1/", **(AGAIN if action else {"action": None})
        )
        for answer in vars(responses).values()
        if isinstance(answer, responses.Answer)
        for action in (True, False)
    },
    "missing_key": lambda request: responses.bad_key(request, decisions.MissingKey(), html=True),
    "bad_key": lambda request: responses.bad_key(request, decisions.BadKey("The key is empty."), html=True),
}


def rendered(page: str, language: str) -> Any:
    with translation.override(language):
        return PAGES[page](RequestFactory().get("/form/", headers={"Accept": "text/html"}))


def words(response: HttpResponse) -> set[str]:
    """The texts of a page; of the sentences in one element each is a text."""
    html = re.sub(r"<style.*?</style>", "", response.content.decode(), flags=re.DOTALL)
    texts = {text.strip() for text in re.split(r"<[^>]*>|(?<=[.:]) ", html)}
    return {text for text in texts if re.search(r"[^\W\d]", text)}


@pytest.mark.parametrize("language", ["de", "fr", "es", "pt", "fa", "it"])
def test_every_page_is_translated_whole_or_is_english_and_says_so(language: str) -> None:
    """No text of it is that of the English page; for "it" there is no catalog."""
    said = "en" if language == "it" else language
    for page in PAGES:
        response = rendered(page, language)
        html, english = response.content.decode(), words(rendered(page, "en"))
        assert response["Content-Language"] == said
        assert words(response)
        assert words(response) & english == (english if said == "en" else set()), page
        assert f'<html lang="{said}"{" dir=" if language == "fa" else ">"}' in html
        assert ('dir="rtl"' in html) == (language == "fa")
