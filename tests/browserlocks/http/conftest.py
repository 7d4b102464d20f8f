"""Two people, at the site of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.urls import clear_url_caches

from tests.browserlocks.http.people import Person, make_person, remove_people

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def crew(databases: None, settings: Any) -> Iterator[dict[str, Person]]:
    settings.ROOT_URLCONF = "tests.browserlocks.http.site"
    clear_url_caches()
    remove_people()
    try:
        yield {"ada": Person(make_person("ada")), "bo": Person(make_person("bo"))}
    finally:
        remove_people()
        clear_url_caches()


@pytest.fixture
def ada(crew: dict[str, Person]) -> Person:
    return crew["ada"]


@pytest.fixture
def bo(crew: dict[str, Person]) -> Person:
    return crew["bo"]


@pytest.fixture
def grant(ada: Person) -> str:
    """Ada's, for the cart."""
    return ada.grant("cart")
