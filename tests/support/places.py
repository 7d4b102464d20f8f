"""Databases with a level of isolation, and work on a connection beside that of the test."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django.db import connections
from django.test.utils import CaptureQueriesContext

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
READ_COMMITTED, REPEATABLE_READ = "READ COMMITTED", "REPEATABLE READ"
ALIASES = {
    "default": ("",),
    "postgres": (READ_COMMITTED, REPEATABLE_READ),
    "mariadb": (READ_COMMITTED, REPEATABLE_READ),
}


class Place(NamedTuple):
    """A database and a level of isolation; SQLite has one level."""

    alias: str
    level: str

    def __str__(self) -> str:
        return f"{self.alias}-{self.level.lower().replace(' ', '-')}".rstrip("-")


EVERYWHERE = [Place(alias, level) for alias, levels in ALIASES.items() for level in levels]


def isolate(place: Place) -> None:
    """Give the connection of this thread the level of isolation, for all its transactions."""
    connections[place.alias].close()
    with connections[place.alias].cursor() as cursor:
        if place.alias == "postgres":
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {place.level}")
        elif place.alias == "mariadb":
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL {place.level}")
            if connections["mariadb"].mysql_is_mariadb:  # type: ignore[attr-defined]
                cursor.execute("SET SESSION innodb_snapshot_isolation = ON")


def at_the_side(place: Place, work: Callable[[], T]) -> T:
    """Run it on another connection, and wait for its result."""

    def run() -> T:
        try:
            isolate(place)
            return work()
        finally:
            connections.close_all()  # what it works with may use others, for sessions

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result(30)


def after_statement(alias: str, word: str, work: Callable[[], object]) -> Any:
    """A wrapper that does something once at the side, right after the first statement with this word."""
    done: list[bool] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        found = execute(sql, params, many, context)
        if word in sql and not done:
            done.append(True)
            at_the_side(Place(alias, READ_COMMITTED), work)
        return found

    return connections[alias].execute_wrapper(wrapper)


def statements_of(alias: str, work: Callable[[], object]) -> list[str]:
    """The first words of the statements that the work sends."""
    with CaptureQueriesContext(connections[alias]) as queries:
        work()
    return [query["sql"].split(None, 1)[0] for query in queries]
