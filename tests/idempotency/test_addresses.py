"""Addresses of a request in pages and headers: a path that begins with two slashes is no other host."""

from __future__ import annotations

import html
import http.client
import re
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urljoin, urlsplit

import pytest
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.db import connections
from django.urls import clear_url_caches, re_path

from tests.idempotency.test_forms import hidden_fields
from tests.idempotency.views import copy_of, redirect, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.idempotency.views import Stage

# A catch-all route, as sites with pages of a CMS have.
urlpatterns = [re_path(r"^(?P<page>.*)order/$", copy_of(show))]
# "/\host" too: browsers take a backslash for a slash.
PATHS = pytest.mark.parametrize("path", ["//evil.example/order/", "/%2Fevil.example/order/", "/%5Cevil.example/order/"])


class Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


class Closing(WSGIHandler):
    """Ends what the thread of a request has opened."""

    def __call__(self, *args: Any) -> Any:
        try:
            return super().__call__(*args)
        finally:
            connections.close_all()


@pytest.fixture
def port(site: Stage, settings: Any) -> Iterator[int]:
    """A real server on a real socket: Django's test client takes two slashes for a host itself."""
    settings.ROOT_URLCONF = __name__
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    clear_url_caches()
    site.answer = redirect
    server = ThreadedWSGIServer(("127.0.0.1", 0), Quiet)
    server.set_app(Closing())
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join(10)


def ask(port: int, method: str, path: str, cookie: str = "", fields: Any = None) -> Any:
    """The answer, its page in ``text``."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {"Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
    connection.request(method, path, None if fields is None else urlencode(fields), headers)
    response: Any = connection.getresponse()
    response.text = response.read().decode()
    connection.close()
    return response


def opened(port: int, path: str) -> tuple[str, dict[str, str]]:
    page = ask(port, "GET", path)
    assert page.status == 200
    return page.getheader("Set-Cookie").partition(";")[0], hidden_fields(page.text.split("<form")[1])


def stays(address: str) -> bool:
    """Would a browser stay on the site?"""
    return urlsplit(urljoin("http://site.example/", address.replace("\\", "/"))).netloc == "site.example"


@PATHS
def test_the_form_that_submits_as_new_stays_on_the_site(port: int, path: str) -> None:
    """Naive code writes the path as it came into the action: token, key and fields go to another host."""
    cookie, fields = opened(port, path)
    assert ask(port, "POST", path, cookie, fields | {"name": "a"}).status == 302
    page = ask(port, "POST", path, cookie, fields | {"name": "b"})
    assert page.status == 422
    action = html.unescape(re.findall(r'<form method="post" action="([^"]*)"', page.text)[0])
    assert stays(action), action
    again = hidden_fields(page.text)
    assert ask(port, "POST", action, cookie, again | {"name": "b"}).status == 302


@PATHS
def test_the_waiting_page_stays_on_the_site(port: int, site: Stage, path: str) -> None:
    """The first Refresh did; the second one, of the page that looks for the outcome, left."""
    cookie, fields = opened(port, path)
    acted, go_on = threading.Event(), threading.Event()
    site.during = lambda request: acted.set() or go_on.wait(20)
    first = threading.Thread(target=ask, args=(port, "POST", path, cookie, fields))
    first.start()
    try:
        assert acted.wait(10)
        page = ask(port, "POST", path, cookie, fields)
        for _ in range(3):
            address = page.getheader("Refresh").partition("url=")[2]
            links = [html.unescape(link) for link in re.findall(r'href="([^"]*)"', page.text)]
            assert all(stays(each) for each in [address, *links]), (address, links)
            page = ask(port, "GET", address, cookie)
            assert "Still working" in page.text
    finally:
        go_on.set()
        first.join(20)
    assert ask(port, "GET", address, cookie).status == 302
