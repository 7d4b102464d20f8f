"""One replay per engine and transaction setting, shared by the tests that look at it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from .databases import demo_database, manage

if TYPE_CHECKING:
    from collections.abc import Iterator


class Replayed(Protocol):
    def __call__(self, engine: str, *, atomic: bool) -> tuple[int, dict[str, Any]]: ...


@pytest.fixture(scope="session")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replayed]:
    """Exit status and figures of `manage.py replay`: 200 identical sign-ups per way against 4 server processes."""
    with ExitStack() as databases:

        @cache
        def database(engine: str) -> dict[str, str]:
            return databases.enter_context(demo_database(engine, tmp_path_factory.mktemp(engine)))

        @cache
        def replay(engine: str, *, atomic: bool) -> tuple[int, dict[str, Any]]:
            environment = database(engine) | {"DISTLOCK_ATOMIC_REQUESTS": "1" if atomic else "0"}
            done = manage("replay", "--identical=200", "--distinct=0", "--json", environment=environment)
            return done.returncode, json.loads(done.stdout)

        yield replay
