"""Browser locks on a server whose time zone has daylight saving: one hour of the year occurs twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests.browserlocks.http.people import new
from tests.conftest import eventually
from tests.support.zones import autumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browserlocks.http.people import Person
    from tests.support.zones import Autumn


@pytest.fixture
def clocks(crew: dict[str, Person], settings: Any) -> Iterator[Autumn]:
    settings.DISTLOCK_BROWSER = {"DATABASE": "mariadb"}
    with autumn("mariadb") as found:
        yield found
        with connections["mariadb"].cursor() as cursor:
            for table in ("django_distlock_browserlock", "django_distlock_browserticket"):
                cursor.execute(f"DELETE FROM {table}")


def test_a_lock_does_not_end_with_the_hour_that_occurs_twice(ada: Person, bo: Person, clocks: Autumn) -> None:
    clocks.after()
    grant = ada.grant("cart", ttl=60)
    lease, fence = ada.take(grant)
    clocks.over()
    assert bo.acquire(bo.grant("cart")).status_code == 409
    assert ada.renewed(lease, fence, grant)["expires_in"] > 50


def test_a_lock_is_not_kept_for_an_hour(ada: Person, bo: Person, clocks: Autumn) -> None:
    clocks.before()
    ada.take(ada.grant("cart", ttl=2))
    clocks.after()
    grant, lease = bo.grant("cart"), new()
    eventually(lambda: bo.acquire(grant, lease).status_code == 201, "the lock of a page that is gone stays held")
