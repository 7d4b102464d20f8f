"""A site with another theme, in a process of its own: such an app cannot be added to one that runs."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from django.apps import apps
from django.contrib import admin
from django.urls import include, path

from django_distlock import advisory_lock, held_locks
from tests.conftest import eventually

if TYPE_CHECKING:
    from tests.support.child import Link

THEMES = ("unfold", "jazzmin", "grappelli")
NAME = "nightly-import of all the invoices of the year"

urlpatterns = [path("admin/", admin.site.urls)]
if apps.is_installed("grappelli"):
    urlpatterns.insert(0, path("grappelli/", include("grappelli.urls")))


def serve(link: Link) -> None:
    """Hold locks, have another thread wait for one, and serve the pages about them until told to end."""
    from pytest_django.live_server_helper import LiveServer

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
