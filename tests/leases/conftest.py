"""Articles, names and their leases on each database, at each level of isolation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from tests.browserlocks.store.tabs import Tab, new_id
from tests.editing.store.desks import emptied
from tests.support.places import ALIASES, EVERYWHERE, Place, isolate

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=list(ALIASES))
def alias(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    """Each database in turn."""
    yield from emptied(request.param)


@pytest.fixture(params=EVERYWHERE, ids=str)
def place(request: pytest.FixtureRequest, databases: None) -> Iterator[Place]:
    """Each database and level of isolation in turn."""
    found: Place = request.param
    isolate(found)
    for _ in emptied(found.alias):
        yield found
    connections[found.alias].close()


@pytest.fixture(params=["default", "postgres", "bound", "mariadb", "mysql"])
def dialect(request: pytest.FixtureRequest, databases: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each database, PostgreSQL also with parameters that are bound by the server, MariaDB also as a MySQL, which has
    no SET STATEMENT and no RETURNING."""
    alias = {"bound": "postgres", "mysql": "mariadb"}.get(request.param, request.param)
    connection: Any = connections[alias]
    if request.param == "bound":
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "server_side_binding", True)
    if request.param == "mysql":
        for owner, able in ((connection, "mysql_is_mariadb"), (connection.features, "can_return_columns_from_insert")):
            for each in (type(owner), owner):  # the connections of other threads, and this one
                monkeypatch.setattr(each, able, False)
    connection.close()
    yield from emptied(alias)
    connection.close()


@pytest.fixture
def name() -> str:
    return f"cart:{new_id()}"


@pytest.fixture
def two(alias: str, name: str) -> tuple[Tab, Tab]:
    """Ada's and Bob's tab; Ada's has the lock."""
    ada, bob = Tab(alias, name), Tab(alias, name, "bob")
    ada.take(ttl=60)
    return ada, bob
