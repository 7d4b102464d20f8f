"""Roles to which an administrator gave settings of their own."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

import pytest

from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.faults.conftest import database_alias
from tests.faults.server import ask


@pytest.fixture
def role(databases: None, alias: Any) -> Any:
    """``role("SUPERUSER", lock_timeout="1s")``: from here on locks of "postgres" are taken by such a role."""
    with ExitStack() as stack:

        def use(attributes: str = "", **settings: str) -> None:
            user = f"distlock_role_{os.getpid()}"
            ask("postgres", f"CREATE ROLE {user} LOGIN PASSWORD 'role' {attributes}")
            stack.callback(drop, user)
            for setting, value in settings.items():
                ask("postgres", f"ALTER ROLE {user} SET {setting} = '{value}'")
            database = stack.enter_context(database_alias("role", "postgres", USER=user, PASSWORD="role"))
            alias("postgres", database=database)
            stack.callback(registry.close)

        yield use


def drop(user: str) -> None:
    """Once its sessions have ended."""
    eventually(lambda: not ask("postgres", "SELECT 1 FROM pg_stat_activity WHERE usename = %s", user), "still there")
    ask("postgres", f"DROP ROLE {user}")
