"""People with different permissions, and browsers that are logged in as them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.test import Client, override_settings
from django.urls import reverse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LIST = reverse("admin:django_distlock_heldlock_changelist")
BREAK = reverse("admin:django_distlock_heldlock_break")

PEOPLE: dict[str, tuple[str, ...]] = {
    "nobody": (),
    "viewer": ("view_heldlock",),
    "breaker": ("break_lock",),
    "both": ("view_heldlock", "break_lock"),
}


def make_people() -> dict[str, User]:
    found = {}
    for name, codenames in PEOPLE.items():
        found[name] = User.objects.create(username=name, password="!", is_staff=True)
        found[name].user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_distlock", codename__in=codenames)
        )
    found["boss"] = User.objects.create(username="boss", password="!", is_staff=True, is_superuser=True)
    return found


def remove_people() -> None:
    LogEntry.objects.all().delete()
    Session.objects.all().delete()
    User.objects.filter(username__in=[*PEOPLE, "boss"]).delete()


@pytest.fixture
def two_aliases(databases: None) -> Iterator[None]:
    """Only those that need no server: a page asks them all."""
    with override_settings(DISTLOCK={alias: settings.DISTLOCK[alias] for alias in ("memory", "leasetable")}):
        yield


@pytest.fixture
def people(databases: None) -> Iterator[dict[str, User]]:
    try:
        yield make_people()
    finally:
        remove_people()


@pytest.fixture
def as_(people: dict[str, User]) -> Callable[..., Client]:
    """``as_("viewer")``: a client that is logged in; ``as_("anonymous")``: one that is not."""

    def logged_in(name: str, **options: bool) -> Client:
        client = Client(**options)
        if name != "anonymous":
            client.force_login(people[name])
        return client

    return logged_in


@pytest.fixture
def boss(as_: Callable[..., Client]) -> Client:
    return as_("boss")
