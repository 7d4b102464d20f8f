"""People, clients that are logged in as them, and the browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.test import Client, override_settings

from django_distlock import break_lock, held_locks
from tests.operations.admin.browsing import chrome, page, site  # noqa: F401 - fixtures
from tests.operations.admin.pages import make_people, remove_people

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.contrib.auth.models import User


@pytest.fixture
def two_aliases(databases: None) -> Iterator[None]:
    """Only those that need no server: a page asks them all. Nothing is held: tests of lost leases leave some behind."""
    with override_settings(DISTLOCK={alias: settings.DISTLOCK[alias] for alias in ("memory", "leasetable")}):
        for info in (info for report in held_locks() for info in report.locks):
            break_lock(info)
        yield


@pytest.fixture
def people(databases: None) -> Iterator[dict[str, User]]:
    remove_people()
    try:
        yield make_people()
    finally:
        remove_people()


@pytest.fixture
def as_(people: dict[str, User]) -> Callable[..., Client]:
    """``as_("viewer")``: a client that is logged in; ``as_("anonymous")``: one that is not."""

    def client_of(name: str, **options: bool) -> Client:
        client = Client(**options)
        if name != "anonymous":
            client.force_login(people[name])
        return client

    return client_of


@pytest.fixture
def boss(as_: Callable[..., Client]) -> Client:
    return as_("boss")
