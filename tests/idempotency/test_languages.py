"""Addresses with a language in front: /en/... and /de/... are two addresses, as any others are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.conf.urls.i18n import i18n_patterns
from django.urls import clear_url_caches, path
from django.utils import translation

from tests.idempotency.conftest import Sender
from tests.idempotency.test_forms import Browser
from tests.idempotency.views import act, redirect, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.views import Stage

urlpatterns = i18n_patterns(path("form/", show), path("plain/", act))


@pytest.fixture
def languages(site: Stage, settings: Any) -> Iterator[Stage]:
    settings.USE_I18N = True
    settings.ROOT_URLCONF = __name__
    clear_url_caches()
    with translation.override(translation.get_language()):  # the middleware leaves that of the last request
        yield site


def test_a_form_is_saved_once_whatever_the_browser_prefers_by_now(languages: Stage) -> None:
    """The address sets the language, not the cookie or the header: a visitor that changes those sends the same form."""
    languages.answer = redirect
    browser = Browser()
    fields = browser.open("en/form")
    first = browser.send(fields, "en/form")
    browser.client.cookies["django_language"] = "de"
    second = browser.send(fields, "en/form", headers={"Accept-Language": "de"})
    assert (first.status_code, second["Idempotency-Replayed"]) == (302, "true")
    assert languages.effects == 1


def test_the_key_of_a_form_does_not_count_under_another_language(languages: Stage) -> None:
    """Nothing is saved a second time without a question."""
    languages.answer = redirect
    browser = Browser()
    fields = browser.open("en/form")
    assert browser.send(fields, "en/form").status_code == 302
    assert browser.send(fields, "de/form").status_code == 409
    assert languages.effects == 1


def test_header_keys_count_for_each_address(languages: Stage, key: str) -> None:
    sender = Sender(key)
    assert [sender.post(f"{language}/plain").status_code for language in ("en", "de", "en", "de")] == [201] * 4
    assert languages.effects == 2
