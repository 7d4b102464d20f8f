"""The pages for people while the first request runs, or after it has died; and the addresses in pages and headers:
a path that begins with two slashes is no other host."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

import pytest
from django.test import RequestFactory
from django.urls import re_path

from tests.idempotency.views import copy_of, show
from tests.idempotency.world import Browser, Running, change, hidden_fields, refresh_of, serve, sql, states

if TYPE_CHECKING:
    from tests.idempotency.world import Stage

# A catch-all route, as sites with pages of a CMS have.
urlpatterns = [re_path(r"^(?P<page>.*)order/$", copy_of(show))]


def shown(browser: Browser, url: str) -> str:
    return str(browser.client.get(url).content.decode())


@pytest.mark.parametrize(("alias", "shape"), [("postgres", "form"), ("postgres", "atomic_form"), ("mariadb", "form")])
def test_a_person_waits_on_a_page_that_goes_on_by_itself(site: Stage, browser: Browser, shape: str) -> None:
    fields = browser.open(shape)
    twin, stranger = Browser(browser), Browser()
    stranger.open()
    with Running(site, lambda: browser.send(fields, shape)):
        page = twin.send(fields, shape)
        assert (page.status_code, page["Retry-After"]) == (409, "2")
        url = refresh_of(page)
        assert "Still working" in shown(twin, url)
        assert "Still working" not in shown(stranger, url)
    done = twin.client.get(url)
    assert (done.status_code, done["Location"]) == (302, "/made/1/")
    assert site.effects == 1


@pytest.mark.parametrize("alias", ["postgres"])
def test_the_waiting_page_tells_of_a_failure(site: Stage, browser: Browser) -> None:
    """The first request broke off: nothing was saved, and the page says so."""
    fields = browser.open("atomic_form")
    browser.client.raise_request_exception = False
    twin = Browser(browser)
    site.answer = lambda request: 1 / 0
    with Running(site, lambda: browser.send(fields, "atomic_form")):
        url = refresh_of(twin.send(fields, "atomic_form"))
    assert "Not saved" in shown(twin, url)


def test_the_waiting_page_of_a_request_that_died(site: Stage, browser: Browser) -> None:
    """Naive code says that it was not saved, although that is unknown."""
    fields = browser.open()
    with Running(site, lambda: browser.send(fields)):
        url = refresh_of(Browser(browser).send(fields))
    sql(site.alias, "UPDATE {keys} SET state = 'claimed', facts = NULL, expires_at = 1")
    assert "Not known whether it was saved" in shown(Browser(browser), url)


@pytest.mark.parametrize(("alias", "shape"), [("default", "form"), ("postgres", "atomic_form")])
def test_changed_data_while_the_first_is_saved(site: Stage, browser: Browser, shape: str, settings: Any) -> None:
    """Naive code says that the changes are being worked on, and then shows what was saved without them. What still runs
    is not said to be saved: it may yet end as the form with its errors, and then nothing was."""
    change(settings, FORM_WAIT=0.05)
    fields = browser.open(shape)
    twin = Browser(browser)
    with Running(site, lambda: browser.send(fields | {"name": "a"}, shape)):
        changed = twin.send(fields | {"name": "b"}, shape)
        text = changed.content.decode()
        assert "Already saved" not in text
    if shape == "atomic_form":  # the server cannot know yet: the page that reloads will show it
        text = shown(twin, refresh_of(changed))
    else:
        assert changed.status_code == 422
        assert "Still being saved" in text
        assert "Submit as new" in text
    assert "has not been saved" in text
    assert "Already saved" in browser.send(fields | {"name": "b"}, shape).content.decode()
    assert (site.effects, states(site.alias)) == (1, ["completed"])


@pytest.mark.parametrize("name", ["заказ", "a\nb"])
def test_the_waiting_page_of_any_address(site: Stage, browser: Browser, name: str) -> None:
    """A header cannot hold each character of a path."""
    address = RequestFactory().get(f"/named/{name}/").get_full_path()
    fields = hidden_fields(shown(browser, address).split("<form")[1])
    twin = Browser(browser)
    with Running(site, lambda: browser.client.post(address, fields)):
        page = twin.client.post(address, fields)
    assert page.status_code == 409
    assert twin.client.get(refresh_of(page))["Location"] == "/made/1/"


# -- addresses


def ask(browser: Browser, method: str, path: str, fields: Any = None) -> Any:
    """The test client itself would take two slashes for a host."""
    address, _, query = path.partition("?")
    return getattr(browser.client, method)("/", fields, PATH_INFO=address, QUERY_STRING=query)


def stays(address: str) -> bool:
    """Would a browser stay on the site? It takes a backslash for a slash."""
    return urlsplit(urljoin("http://site.example/", address.replace("\\", "/"))).netloc == "site.example"


@pytest.mark.parametrize("path", ["//evil.example/order/", "/\\evil.example/order/"])
def test_forms_and_pages_stay_on_the_site(site: Stage, browser: Browser, settings: Any, path: str) -> None:
    """Naive code writes the path as it came into the action: token, key and fields go to another host. And a waiting
    page leads there, the first or those that it loads."""
    serve(settings, __name__)
    fields = hidden_fields(ask(browser, "get", path).content.decode().split("<form")[1])
    twin = Browser(browser)
    with Running(site, lambda: ask(browser, "post", path, fields | {"name": "a"})):
        waiting = ask(twin, "post", path, fields | {"name": "a"})
        for _ in range(2):
            address = refresh_of(waiting)
            links = [html.unescape(link) for link in re.findall(r'href="([^"]*)"', waiting.content.decode())]
            assert all(stays(each) for each in [address, *links]), (address, links)
            waiting = twin.client.get(address)
            assert "Still working" in waiting.content.decode()
    page = ask(browser, "post", path, fields | {"name": "b"})
    assert page.status_code == 422
    action = html.unescape(re.findall(r'<form method="post" action="([^"]*)"', page.content.decode())[0])
    assert stays(action), action
    again = hidden_fields(page.content.decode())
    assert browser.client.post(action, again | {"name": "b"}).status_code == 302
