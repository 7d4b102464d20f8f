"""Tickets name the waiter; files and processes from before that are served all the same."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from django_distlock.backends.leasetable.records import UNKNOWN, rows_of
from django_distlock.backends.leasetable.sqlite import HAS_ADDED, SCHEMA, LeaseFile, SqliteStatements
from django_distlock.keys import derive_key
from django_distlock.records import MOST_WAITING, Claim

if TYPE_CHECKING:
    from pathlib import Path

LEASE = ("d", "name", "t", 1, 2, 3, "me")


def test_waiters_are_in_order_and_counted_beyond_what_is_named() -> None:
    other = ("e", *LEASE[1:])
    found = [(*LEASE, f"t{n}", f"host:{n}") for n in range(MOST_WAITING + 5)]
    first, second, third = rows_of([*found, (*other, None, None), (*("f", *LEASE[1:]), "old", None)])
    assert (first.waiters, first.waiting) == (MOST_WAITING + 5, tuple(f"host:{n}" for n in range(MOST_WAITING)))
    assert (second.waiters, second.waiting) == (0, ())
    assert (third.waiters, third.waiting) == (1, (UNKNOWN,))


@pytest.fixture
def of_before(tmp_path: Path) -> str:
    """A lease file whose tickets do not say whose they are, nor where their waiters can be woken."""
    path = str(tmp_path / "db.sqlite3-distlock")
    with closing(sqlite3.connect(path)) as connection:
        for statement in SCHEMA:
            connection.execute(statement.replace(" holder TEXT,\n        address TEXT, PRIMARY", "\n        PRIMARY"))
        assert not connection.execute(HAS_ADDED).fetchall()
    return path


def test_a_file_of_before_gets_the_column_and_its_own_processes_go_on(of_before: str) -> None:
    with closing(sqlite3.connect(of_before, isolation_level=None)) as old:
        file, statements, now = LeaseFile(of_before), SqliteStatements("a"), time.time_ns() // 1000
        key = derive_key("site", "a", "n")
        file.change("INSERT INTO lease VALUES (?, 'a', 'n', 't', 1, 2, ?, 'me')", (key.digest, now + 10**9))
        old.execute("INSERT INTO ticket (digest, place, token, seen) VALUES (?, 1, 'old', ?)", (key.digest, now))
        assert statements.join(file, Claim(key=key, ttl=1, token="new"), "host:1:MainThread", "a1") == (2, 1)
        (row,) = statements.rows(file)
        assert row.waiting == (UNKNOWN, "host:1:MainThread")
        file.close()
        again = LeaseFile(of_before)
        assert statements.rows(again)[0].waiters == 2
        again.close()


def test_a_file_that_a_process_of_before_makes_at_the_same_time_gets_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older process is faster, between our look at the format and our creation of the tables."""
    path, create = str(tmp_path / "db.sqlite3-distlock"), LeaseFile._create

    def late(cursor: sqlite3.Cursor) -> None:
        with closing(sqlite3.connect(path)) as old:
            for statement in SCHEMA:
                old.execute(statement.replace(" holder TEXT,\n        address TEXT, PRIMARY", "\n        PRIMARY"))
        create(cursor)

    monkeypatch.setattr(LeaseFile, "_create", staticmethod(late))
    file, key = LeaseFile(path), derive_key("site", "a", "n")
    assert SqliteStatements("a").join(file, Claim(key=key, ttl=1, token="new"), "host:1:MainThread", "a1") == (1, 0)
    file.close()
