"""One lease table at a time, and clients of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engines.leasetable.stores import Stores
from tests.support.unhurried import give_time


@pytest.fixture(params=["file", "postgres", "mariadb"])
def stores(request: pytest.FixtureRequest, databases: None, monkeypatch: Any, tmp_path: Any) -> Any:
    give_time(monkeypatch.setattr)
    made = Stores(request.param, monkeypatch, tmp_path)
    yield made
    made.close()


@pytest.fixture
def a(stores: Stores) -> Any:
    return stores.client()


@pytest.fixture
def b(stores: Stores) -> Any:
    return stores.client()
