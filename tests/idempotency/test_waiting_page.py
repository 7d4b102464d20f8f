"""The page for people whose first request still runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests.idempotency.test_forms import Browser
from tests.idempotency.views import redirect

if TYPE_CHECKING:
    from tests.idempotency.views import Stage

servers = pytest.mark.parametrize("alias", ["postgres", "mariadb"])


@servers
@pytest.mark.parametrize("shape", ["form", "atomic_form"])
def test_a_person_waits_on_a_page_that_goes_on_by_itself(site: Stage, shape: str) -> None:
    site.answer = redirect
    browser = Browser()
    fields = browser.open(shape)
    acted, go_on = threading.Event(), threading.Event()
    site.during = lambda request: acted.set() or go_on.wait(20)

    def first() -> None:
        browser.send(fields, shape)
        connections.close_all()

    thread = threading.Thread(target=first)
    thread.start()
    assert acted.wait(20)
    try:
        waiting = Browser()
        waiting.client.cookies.update(browser.client.cookies)
        page = waiting.send(fields, shape)
        assert (page.status_code, page["Retry-After"]) == (409, "2")
        url = page["Refresh"].partition("url=")[2]
        assert "Still working" in waiting.client.get(url).content.decode()
        stranger = Browser()
        stranger.open()
        assert "Still working" not in stranger.client.get(url).content.decode()
    finally:
        go_on.set()
        thread.join(20)
    done = waiting.client.get(url)
    assert (done.status_code, done["Location"]) == (302, "/made/1/")
    assert site.effects == 1


@servers
def test_the_waiting_page_tells_of_a_failure(site: Stage) -> None:
    """The first request broke off: nothing was saved, and the page says so."""
    browser = Browser()
    fields = browser.open("atomic_form")
    acted, go_on = threading.Event(), threading.Event()

    def fail(request: Any) -> None:
        acted.set()
        go_on.wait(20)
        raise RuntimeError("boom")

    site.during = fail
    browser.client.raise_request_exception = False

    def first() -> None:
        browser.send(fields, "atomic_form")
        connections.close_all()

    thread = threading.Thread(target=first)
    thread.start()
    assert acted.wait(20)
    other = Browser()
    other.client.cookies.update(browser.client.cookies)
    url = other.send(fields, "atomic_form")["Refresh"].partition("url=")[2]
    go_on.set()
    thread.join(20)
    assert "Not saved" in other.client.get(url).content.decode()
