"""Two people, at the site of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.urls import clear_url_caches

from tests.browserlocks.people import NAMES, Person, Tab, remove_people

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def crew(databases: None, settings: Any) -> Iterator[list[User]]:
    settings.ROOT_URLCONF = "tests.browserlocks.site"
    settings.ALLOWED_HOSTS = ["*"]
    clear_url_caches()
    remove_people()
    yield [User.objects.create(username=name, first_name=name.title(), password="!") for name in NAMES]
    remove_people()
    clear_url_caches()


@pytest.fixture
def ada(crew: list[User]) -> Person:
    return Person(crew[0])


@pytest.fixture
def bo(crew: list[User]) -> Person:
    return Person(crew[1])


@pytest.fixture
def mine(ada: Person) -> Tab:
    """Ada's tab with the lock of the cart."""
    return ada.tab().take()
