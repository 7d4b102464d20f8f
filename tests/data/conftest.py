"""Every database in turn, with the rows of fenced models gone after each test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

ALIASES = ("default", "postgres", "mariadb")

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=ALIASES)
def alias(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    from tests.data.app.models import FencedLedger, Node, Place, Register

    yield request.param
    models: tuple[Any, ...] = (FencedLedger, Register, Node, Place)
    for model in models:
        model._default_manager.using(request.param).all().delete()
