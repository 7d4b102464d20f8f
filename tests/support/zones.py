"""Time zones in which the clocks are set back: as the sessions of a MySQL or MariaDB server see them in autumn."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Iterator

HOUR = 3600
TABLES = ("time_zone_transition", "time_zone_transition_type", "time_zone_name", "time_zone")


class Autumn:
    """The time zone of the sessions of a database. The hour before the clocks are set back, and the one after it, have
    the same local time."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        self._options = connections.settings[alias].get("OPTIONS", {})

    def before(self) -> None:
        """In half an hour the clocks are set back."""
        self._move(time.time() + HOUR / 2)

    def after(self) -> None:
        """Half an hour ago the clocks were set back."""
        self._move(time.time() - HOUR / 2)

    def over(self) -> None:
        """The local time is unique again."""
        self._move(time.time() - 2 * HOUR)

    def _move(self, set_back_at: float) -> None:
        zone = f"Distlock/{uuid4().hex}"
        with connections[self._alias].cursor() as cursor:
            cursor.execute("INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
            number = cursor.lastrowid
            cursor.execute("INSERT INTO mysql.time_zone_name VALUES (%s, %s)", [zone, number])
            cursor.execute(
                "INSERT INTO mysql.time_zone_transition_type VALUES (%s, 0, 3600, 0, 'CET'), (%s, 1, 7200, 1, 'CEST')",
                [number, number],
            )
            cursor.execute(
                "INSERT INTO mysql.time_zone_transition VALUES (%s, %s, 1), (%s, %s, 0)",
                [number, int(set_back_at) - 1000 * HOUR, number, int(set_back_at)],
            )
        self.use({**self._options, "init_command": f"SET time_zone = '{zone}'"})

    def use(self, options: dict[str, object] | None = None) -> None:
        """New connections have these options."""
        connections.settings[self._alias]["OPTIONS"] = self._options if options is None else options
        connections[self._alias].close()


@contextmanager
def autumn(alias: str) -> Iterator[Autumn]:
    """Sessions of ``alias`` are in the zone that is named last, until the end of the block."""
    clocks = Autumn(alias)
    try:
        yield clocks
    finally:
        clocks.use()
        with connections[alias].cursor() as cursor:
            numbers = "SELECT Time_zone_id FROM mysql.time_zone_name WHERE Name LIKE 'Distlock/%%'"
            cursor.execute(numbers, [])
            for (number,) in cursor.fetchall():
                for table in TABLES:
                    cursor.execute(f"DELETE FROM mysql.{table} WHERE Time_zone_id = %s", [number])
