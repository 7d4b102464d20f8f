"""Real browsers on real servers whose locks are on the pages; also for sites with another theme."""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.contrib import admin
from django.test import Client
from django.urls import include, path
from pytest_django.live_server_helper import LiveServer

from django_distlock import advisory_lock, held_locks
from tests.conftest import eventually
from tests.operations.admin.pages import LIST, log_in, remove_people
from tests.support.browsers import Tab

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.http import HttpRequest, HttpResponse

    from tests.support.child import Link

NAME = "nightly-import of all the invoices of the year"
# What a careful site lets its pages do.
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"


def strict_policy(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return middleware


class Page(Tab):
    """A tab of somebody who may do everything."""

    def __init__(self, tab: Tab, url: str) -> None:
        super().__init__(tab.profile, tab.handle)
        self.url = url
        self.driver: Any = tab.profile.driver  # type: ignore[attr-defined]
        self.open(f"{url}/static/admin/css/base.css")
        session = log_in(Client(), "boss").cookies["sessionid"].value
        self.driver.add_cookie({"name": settings.SESSION_COOKIE_NAME, "value": session})

    def go(self, where: str = LIST) -> None:
        self.open(self.url + where)

    def press(self, selector: str) -> None:
        """A link or a button that leads to another page."""
        self.follow(lambda: self.click(selector))

    def get(self, selector: str, attribute: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])[arguments[1]]", selector, attribute))

    def names(self) -> list[str]:
        found: list[str] = self.run(  # at once: a refresh may replace the list at any time
            "return Array.from(document.querySelectorAll('#result_list th.field-name bdi'), name => name.innerText)"
        )
        return found


@contextmanager
def visit(tab: Tab, url: str) -> Iterator[Page]:
    try:
        yield Page(tab, url)
    finally:
        tab.open("about:blank")  # it asks for nothing between tests
        remove_people()


def serve(link: Link) -> None:
    """In a process of its own, as a theme cannot be added to one that runs: hold locks, have another thread wait for
    one, and serve the pages about them until told to end."""
    global urlpatterns
    urlpatterns = [path("admin/", admin.site.urls)]
    if apps.is_installed("grappelli"):
        urlpatterns.insert(0, path("grappelli/", include("grappelli.urls")))
    settings.ROOT_URLCONF = __name__

    def wait() -> None:
        with advisory_lock(NAME, using="leases", timeout=300):
            pass

    with ExitStack() as stack:
        waiter = threading.Thread(target=wait)
        stack.callback(lambda: waiter.join())
        for using, name, shared in (("leases", NAME, False), ("leases", "stock:9", False), ("default", "prices", True)):
            stack.enter_context(advisory_lock(name, using=using, shared=shared, timeout=5))
        waiter.start()
        eventually(lambda: any(info.waiters for info in held_locks("leases")[0].locks), "nobody waits")
        server = LiveServer("127.0.0.1:0")
        stack.callback(server.stop)
        link.say(server.url)
        link.hear()
