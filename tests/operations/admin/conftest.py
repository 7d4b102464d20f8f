"""People with different permissions, and clients that are logged in as them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.test import Client, override_settings

from django_distlock import break_lock, held_locks
from tests.operations.admin.pages import log_in, remove_people

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def two_aliases(databases: None) -> Iterator[None]:
    """Only those that need no server: a page asks them all. Nothing is held: tests of lost leases leave some behind."""
    with override_settings(DISTLOCK={alias: settings.DISTLOCK[alias] for alias in ("memory", "leasetable")}):
        for info in (info for report in held_locks() for info in report.locks):
            break_lock(info)
        yield


@pytest.fixture
def as_(databases: None) -> Iterator[Callable[..., Client]]:
    """``as_("viewer")``: a client that is logged in; ``as_("anonymous")``: one that is not."""
    remove_people()
    try:
        yield lambda name, **options: log_in(Client(**options), name)
    finally:
        remove_people()


@pytest.fixture
def boss(as_: Callable[..., Client]) -> Client:
    return as_("boss")
