"""The pages that visitors see come in their language, and say so; without a catalog they are English, and say that."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils import translation

from django_distlock import LockNotAcquired
from django_distlock.idempotency import decisions
from django_distlock.idempotency.http import responses
from django_distlock.middleware import LockBusyMiddleware
from tests.idempotency.views import show
from tests.idempotency.world import MIDDLEWARE, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from django.http import HttpRequest

    from tests.idempotency.world import Browser

LANGUAGES = ["de", "fr", "es", "pt", "fa"]


def busy(request: HttpRequest) -> HttpResponse:
    raise LockNotAcquired("taken")


urlpatterns = [path("form/", show), path("busy/", busy)]

AGAIN = {"action": "/form/", "fields": [("note", "1")], "key_field": ""}
PAGES: dict[str, Callable[[HttpRequest], HttpResponse | None]] = {
    "busy": lambda request: LockBusyMiddleware(HttpResponse).process_exception(request, LockNotAcquired("taken")),
    "working": lambda request: responses.working(request, "/form/"),
    "failed": lambda request: responses.page(request, "working", 200),
    "saved": lambda request: responses.page(request, "saved", 409, location="/1/", **AGAIN),
    "changed": lambda request: responses.page(request, "saved", 422, location="/1/", changed=True, **AGAIN),
    "running": lambda request: responses.page(request, "saved", 409, running=True, **AGAIN),
    "unknown": lambda request: responses.page(request, "saved", 409, unknown=True, action=None),
    "refused": lambda request: responses.page(request, "refused", 409, **AGAIN),
    "missing_key": lambda request: responses.bad_key(request, decisions.MissingKey(), html=True),
    "bad_key": lambda request: responses.bad_key(request, decisions.BadKey("The key is empty."), html=True),
    "long_key": lambda request: responses.bad_key(request, bad("x" * 256), html=True),
    "store_down": lambda request: responses.store_down(request, html=True),
    "session_changed": lambda request: responses.page(request, "session_changed", 403, shown=[("1", "2")], **AGAIN),
    "session_lost": lambda request: responses.page(request, "session_changed", 403, shown=[("1", "2")], action=None),
}


def bad(key: str) -> decisions.BadKey:
    with pytest.raises(decisions.BadKey) as error:
        decisions.parse_header(key)
    return error.value


def rendered(page: str, language: str) -> HttpResponse:
    with translation.override(language):
        response = PAGES[page](RequestFactory().get("/form/", headers={"Accept": "text/html"}))
    assert response is not None
    return response


def words(response: HttpResponse) -> set[str]:
    """The texts of a page; of the sentences in one element each is a text."""
    html = re.sub(r"<style.*?</style>", "", response.content.decode(), flags=re.DOTALL)
    texts = {text.strip() for text in re.split(r"<[^>]*>|(?<=[.:]) ", html)}
    return {text for text in texts if re.search(r"[^\W\d]", text)}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_is_translated_whole(language: str) -> None:
    """No text of it is that of the English page."""
    for page in PAGES:
        response = rendered(page, language)
        html = response.content.decode()
        assert words(response)
        assert not words(response) & words(rendered(page, "en")), page
        assert "%(" not in html
        assert response["Content-Language"] == language
        assert f'<html lang="{language}"{" dir=" if language == "fa" else ">"}' in html
        assert ('dir="rtl"' in html) == (language == "fa")
    error = bad("x" * 256)  # the decision is made by code that knows no language
    with translation.override(language):
        problem: Any = responses.bad_key(RequestFactory().get("/"), error, html=False)
    assert problem["Content-Language"] == language
    assert b"The key" not in problem.content
    assert b"255" in problem.content


def test_without_a_catalog_a_page_is_english_and_says_so() -> None:
    for page in PAGES:
        response = rendered(page, "it")
        assert response["Content-Language"] == "en"
        assert '<html lang="en">' in response.content.decode()
        assert words(response) == words(rendered(page, "en"))


PROJECT = """
msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\n"
msgctxt "code of the language of these translations"
msgid "en"
msgstr "{language}"
msgid "Busy"
msgstr "{busy}"
"""


@pytest.mark.parametrize(("language", "busy"), [("de", "Gerade besetzt"), ("it", "Occupato")])
def test_a_project_changes_a_text_or_adds_a_language(language: str, busy: str, tmp_path: Path, settings: Any) -> None:
    folder = tmp_path / language / "LC_MESSAGES"
    folder.mkdir(parents=True)
    text = PROJECT.format(language=language, busy=busy)
    subprocess.run(["msgfmt", "-o", folder / "django.mo", "-"], input=text, check=True, timeout=60, encoding="utf-8")
    settings.LOCALE_PATHS = [tmp_path]
    response = rendered("busy", language)
    assert f"<h1>{busy}</h1>" in response.content.decode()
    assert f'<html lang="{language}">' in response.content.decode()
    assert response["Content-Language"] == language


@pytest.fixture
def visited(browser: Browser, settings: Any) -> Iterator[Browser]:
    serve(settings, __name__)
    settings.MIDDLEWARE = [*MIDDLEWARE, "django_distlock.middleware.LockBusyMiddleware"]
    with translation.override(translation.get_language()):  # the middleware leaves that of the last request
        yield browser


@pytest.mark.parametrize(
    ("accepted", "lang", "taken", "saved"),
    [
        ("de-AT,de;q=0.8", 'lang="de">', "Zurzeit belegt", "Bereits gespeichert"),
        ("fa", 'lang="fa" dir="rtl">', "اکنون مشغول است", "پیش‌تر ذخیره شده است"),
        ("it", 'lang="en">', "Busy", "Already saved"),
    ],
)
def test_what_the_browser_prefers(visited: Browser, accepted: str, lang: str, taken: str, saved: str) -> None:
    headers = {"Accept": "text/html", "Accept-Language": accepted}
    response = Client().get("/busy/", headers=headers)
    assert (response.status_code, response["Content-Language"]) == (503, lang[6:8])
    assert lang in response.content.decode()
    assert f"<h1>{taken}</h1>" in response.content.decode()
    fields = visited.open()
    assert visited.send(fields | {"name": "a"}).status_code == 302
    response = visited.send(fields | {"name": "b"}, headers=headers)
    assert (response.status_code, response["Content-Language"]) == (422, lang[6:8])
    assert f"<h1>{saved}</h1>" in response.content.decode()
    assert lang in response.content.decode()
