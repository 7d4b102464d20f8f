"""What a table lock locks: tables, each in a mode."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class TableLockMode(StrEnum):
    """``READ`` and ``WRITE`` mean the same everywhere; the others are the modes of PostgreSQL, from weak to strong:
    https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-TABLES

    ``READ``: no transaction writes; others may read, and may take READ as well. ``WRITE``: no other transaction writes
    or locks; on MySQL and MariaDB none reads either.
    """

    READ = "read"
    WRITE = "write"
    ACCESS_SHARE = "access share"
    ROW_SHARE = "row share"
    ROW_EXCLUSIVE = "row exclusive"
    SHARE_UPDATE_EXCLUSIVE = "share update exclusive"
    SHARE = "share"
    SHARE_ROW_EXCLUSIVE = "share row exclusive"
    EXCLUSIVE = "exclusive"
    ACCESS_EXCLUSIVE = "access exclusive"


# The modes of PostgreSQL that READ and WRITE stand for. SHARE ROW EXCLUSIVE is the weakest that conflicts with itself
# and with every writer; it lets readers through.
MEANING = {TableLockMode.READ: TableLockMode.SHARE, TableLockMode.WRITE: TableLockMode.SHARE_ROW_EXCLUSIVE}
# ACCESS SHARE to SHARE UPDATE EXCLUSIVE let others write, which no mode of an engine with two modes does. For the other
# modes such an engine takes the one that excludes at least as much.
WEAK = frozenset(list(TableLockMode)[2:6])


@dataclass(slots=True)
class Table:
    """A table: its quoted name, its mode as PostgreSQL names it, and the aliases that queries may use."""

    name: str
    mode: TableLockMode
    aliases: tuple[str, ...] = ()


def described(tables: Sequence[Table]) -> str:
    names = ", ".join(table.name for table in tables)
    return f"The table {names}" if len(tables) == 1 else f"The tables {names}"


def validate_mode(mode: object) -> TableLockMode:
    """The mode of that name, in any case, as PostgreSQL names it; ValueError or TypeError."""
    if not isinstance(mode, str):
        raise TypeError(f"mode must be a str or a TableLockMode, not {type(mode).__name__}.")
    try:
        known = TableLockMode(mode.lower())
    except ValueError:
        names = ", ".join(repr(str(known)) for known in TableLockMode)
        raise ValueError(f"mode must be one of {names}, not {mode!r}.") from None
    return MEANING.get(known, known)
