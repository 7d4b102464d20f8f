"""``manage.py distlock doctor`` at a member of a group of MySQL servers (Group Replication, InnoDB Cluster)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.own_servers import Member, needs_programs, running
from tests.faults.conftest import database_alias
from tests.faults.server import ask
from tests.operations.test_doctor import said
from tests.operations.test_doctor_mysql import on_mysql
from tests.operations.test_doctor_servers import MYSQL
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["on_mysql"]
pytestmark = [pytest.mark.usefixtures("databases"), needs_programs]


@pytest.fixture
def group(on_mysql: None) -> Iterator[tuple[str, str]]:
    """The database aliases of two members, the first of which takes the writes."""
    name = connections.settings["mariadb"]["USER"]
    with (
        running(Member, "mariadb") as one,
        running(Member, "mariadb") as two,
        database_alias("primary", "mariadb", PORT=str(one), NAME=name) as primary,
        database_alias("secondary", "mariadb", PORT=str(two), NAME=name) as secondary,
    ):
        seats = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        for alias, seat in zip((primary, secondary), seats, strict=True):
            join(alias, seat, seats)
        eventually(lambda: online(primary) == online(secondary) == 2, "they are no group", pause=0.1)
        yield primary, secondary
        registry.close()
        for alias in (secondary, primary):
            ask(alias, "STOP GROUP_REPLICATION")


def join(alias: str, seat: str, seats: list[str]) -> None:
    settings = connections.settings[alias]
    ask(alias, "SET GLOBAL group_replication_local_address = %s", seat)
    ask(alias, "SET GLOBAL group_replication_group_seeds = %s", ",".join(seats))
    first = seat == seats[0]
    ask(alias, f"SET GLOBAL group_replication_bootstrap_group = {'ON' if first else 'OFF'}")
    ask(alias, "START GROUP_REPLICATION USER = %s, PASSWORD = %s", settings["USER"], settings["PASSWORD"])
    ask(alias, "SET GLOBAL group_replication_bootstrap_group = OFF")


def online(alias: str) -> int:
    members = "SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'"
    return int(ask(alias, members)[0][0])


def test_a_group(settings: Any, group: tuple[str, str]) -> None:
    """Both members grant one lock: that is what the warning is for."""
    for alias in group:
        assert ask(alias, "SELECT GET_LOCK('both', 0)") == ((1,),)
    primary, secondary = group
    (warning,) = said(settings, MYSQL, database=primary)["warning"]
    assert "belongs to a group of 2: named locks are those of one member only" in warning
    read_only, again = said(settings, MYSQL, database=secondary)["warning"]
    assert "read-only" in read_only
    assert again == warning
