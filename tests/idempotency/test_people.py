"""The pages for people while the first request runs, or after it has died."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.test import RequestFactory

from tests.idempotency.test_forms import Browser, hidden_fields
from tests.idempotency.views import redirect

if TYPE_CHECKING:
    from tests.idempotency.views import Stage


class Twin(Browser):
    """Another tab of the same browser."""

    def __init__(self, browser: Browser) -> None:
        super().__init__()
        self.client.cookies.update(browser.client.cookies)


class Pressed:
    """A form that has been sent, and whose view is still at work; ends at the end of the block."""

    def __init__(self, site: Stage, browser: Browser, fields: dict[str, str], shape: str = "form") -> None:
        self.acted, self.go_on = threading.Event(), threading.Event()
        site.during = lambda request: self.acted.set() or self.go_on.wait(20)

        def send() -> None:
            try:
                browser.send(fields, shape)
            finally:
                connections.close_all()

        self.thread = threading.Thread(target=send)

    def __enter__(self) -> Pressed:
        self.thread.start()
        assert self.acted.wait(20)
        return self

    def __exit__(self, *error: object) -> None:
        self.go_on.set()
        self.thread.join(20)


@pytest.mark.parametrize(("alias", "shape"), [("default", "form"), ("postgres", "atomic_form")], indirect=["alias"])
def test_changed_data_while_the_first_is_saved(site: Stage, settings: Any, shape: str) -> None:
    """Naive code says that the changes are being worked on, and then shows what was saved without them."""
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "FORM_WAIT": 0.05}
    site.answer = redirect
    browser = Browser()
    fields = browser.open(shape)
    with Pressed(site, browser, fields | {"name": "a"}, shape):
        changed = Twin(browser).send(fields | {"name": "b"}, shape)
    if shape == "atomic_form":  # the server cannot know yet: the page that reloads will show it
        url = changed["Refresh"].partition("url=")[2]
        changed = Twin(browser).client.get(url)
    html = changed.content.decode()
    assert "has not been saved" in html
    assert site.effects == 1


def test_the_waiting_page_of_a_request_that_died(site: Stage) -> None:
    """Naive code says that it was not saved, although that is unknown."""
    site.answer = redirect
    browser = Browser()
    fields = browser.open()
    with Pressed(site, browser, fields):
        url = Twin(browser).send(fields)["Refresh"].partition("url=")[2]
    with connections[site.alias].cursor() as cursor:
        cursor.execute("UPDATE django_distlock_idempotency SET state = 'claimed', facts = NULL, expires_at = 1")
    html = Twin(browser).client.get(url).content.decode()
    assert "Not known whether it was saved" in html


@pytest.mark.parametrize("name", ["заказ", "a\nb"])
def test_the_waiting_page_of_any_address(site: Stage, name: str) -> None:
    """A header cannot hold each character of a path."""
    site.answer = redirect
    browser = Browser()
    client = browser.client
    address = RequestFactory().get(f"/named/{name}/").get_full_path()
    fields = hidden_fields(client.get(address).content.decode().split("<form")[1])
    acted, go_on = threading.Event(), threading.Event()
    site.during = lambda request: acted.set() or go_on.wait(20)

    def first() -> None:
        client.post(address, fields)
        connections.close_all()

    thread = threading.Thread(target=first)
    thread.start()
    assert acted.wait(20)
    try:
        page = Twin(browser).client.post(address, fields)
    finally:
        go_on.set()
        thread.join(20)
    assert page.status_code == 409
    url = page["Refresh"].partition("url=")[2]
    assert Twin(browser).client.get(url)["Location"] == "/made/1/"


class Abroad(Browser):
    """Asks for a path that begins with two slashes, which the test client would take for a host."""

    def send(self, fields: dict[str, Any], shape: str = "", **more: Any) -> Any:
        return self.client.post("/", fields, PATH_INFO="//evil.example/form/")


def test_the_waiting_page_leads_to_no_other_site(site: Stage) -> None:
    """Two slashes name another host for a browser that loads the address."""
    site.answer = redirect
    first, second = Abroad(), Abroad()
    page = first.client.get("/", PATH_INFO="//evil.example/form/").content.decode()
    fields = hidden_fields(page.split("<form")[1])
    second.client.cookies.update(first.client.cookies)
    with Pressed(site, first, fields):
        answer = second.send(fields)
    assert answer.status_code == 409
    url = answer["Refresh"].partition("url=")[2]
    assert url.startswith("/%2Fevil.example/form/?")
