"""The modes of a table lock, and what each engine makes of them."""

from __future__ import annotations

from enum import StrEnum


class TableLockMode(StrEnum):
    """``READ`` and ``WRITE`` mean the same everywhere; the others are PostgreSQL's own, in its order and under its
    names: https://www.postgresql.org/docs/current/explicit-locking.html#LOCKING-TABLES

    ``READ``: nobody writes, others may read and may lock for reading too. ``WRITE``: nobody else writes or locks; on
    MySQL and MariaDB nobody else reads either.
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
POSTGRES = {_M.READ: _M.SHARE, _M.WRITE: _M.SHARE_ROW_EXCLUSIVE}

# An engine with two modes grants the stronger one of those that promise what is asked. The four weakest promise that
# others may write: there is nothing like them.
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
