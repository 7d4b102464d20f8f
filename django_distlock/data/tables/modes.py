"""The modes of a table lock, on each engine."""

from __future__ import annotations

from enum import StrEnum


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


_M = TableLockMode

# SHARE ROW EXCLUSIVE is the weakest mode that conflicts with itself and with every writer; it lets readers through.
POSTGRES = {mode: mode for mode in _M} | {_M.READ: _M.SHARE, _M.WRITE: _M.SHARE_ROW_EXCLUSIVE}

# An engine with two modes takes the one that excludes at least as much. The four weakest let others write, which no
# mode of these engines does.
READING = frozenset({_M.READ, _M.SHARE})
WRITING = frozenset({_M.WRITE, _M.SHARE_ROW_EXCLUSIVE, _M.EXCLUSIVE, _M.ACCESS_EXCLUSIVE})


def validate_mode(mode: object) -> TableLockMode:
    """The mode of that name, in any case; ValueError or TypeError."""
    if not isinstance(mode, str):
        raise TypeError(f"mode must be a str or a TableLockMode, not {type(mode).__name__}.")
    try:
        return TableLockMode(mode.lower())
    except ValueError:
        known = ", ".join(repr(str(known)) for known in TableLockMode)
        raise ValueError(f"mode must be one of {known}, not {mode!r}.") from None
