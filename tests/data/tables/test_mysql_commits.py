"""What would end the transaction of a table lock on MySQL and MariaDB is refused, and what has ended it is told."""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, ProgrammingError, connections, transaction

from django_distlock import LockLost, UnsupportedOperation, table_lock
from django_distlock.data.tables.mysql import ENDS, HARMLESS
from tests.data.app.models import Account
from tests.data.asking import ask
from tests.data.fences import sent
from tests.engines.statements import counted
from tests.faults.server import is_mariadb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.data.rival import Rival

pytestmark = pytest.mark.usefixtures("fresh", "procedures")
DB = "mariadb"
PROCEDURES = {
    "commits": "COMMIT",
    "begins": "START TRANSACTION; UPDATE dataapp_account SET balance = balance + 1",
    "asks": "SELECT 1; SELECT 2",
    "answers": "COMMIT; SELECT 1; SELECT 2",
}


@pytest.fixture(autouse=True)
def clean(fresh: None) -> Iterator[None]:
    yield
    Account.objects.using(DB).all().delete()


@pytest.fixture(scope="module")
def procedures(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        for name, body in PROCEDURES.items():
            run(f"CREATE PROCEDURE dataapp_{name}() BEGIN {body}; END")
        yield
        for name in PROCEDURES:
            run(f"DROP PROCEDURE dataapp_{name}")
        connections[DB].close()


def run(sql: str) -> Any:
    return ask(connections[DB], sql)


def owners() -> list[str]:
    return list(Account.objects.using(DB).order_by("pk").values_list("owner", flat=True))


def add(owner: str) -> None:
    Account.objects.using(DB).create(owner=owner)


@contextmanager
def failing(error: type[Exception], match: str | None = None) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """A locked block that ends with this error."""
    with pytest.raises(error, match=match) as caught, table_lock(Account, using=DB):
        yield caught


REFUSED = [
    *("BEGIN", " begin work", "/* why */ START  TRANSACTION READ ONLY", "UNLOCK TABLES", "COMMIT", "ROLLBACK"),
    *(
        "LOCK TABLES dataapp_currency READ",
        "-- the nightly job\nBEGIN",
        "# x\nUNLOCK TABLES",
        "-- x\n/* y */ # z\n COMMIT",
    ),
    *("/*!COMMIT */", "/*!50000 UNLOCK TABLES */", "/*M!100100 COMMIT */", "; COMMIT"),
    *("SET autocommit=1", "SET @@session.autocommit = ON", "FLUSH STATUS", "TRUNCATE dataapp_account"),
    *("ALTER TABLE dataapp_account ADD COLUMN x int", "create table dataapp_new (id int)"),
    *("ANALYZE TABLE dataapp_account", "OPTIMIZE NO_WRITE_TO_BINLOG TABLE dataapp_account"),
]


def test_refused_before_it_is_sent(rival: Rival) -> None:
    with failing(UnsupportedOperation, match="unlock"):
        add("lost")
        for sql in REFUSED:
            with pytest.raises(UnsupportedOperation, match="unlock"):
                run(sql)
        assert not rival.writes(DB)
        run(REFUSED[0])
    assert owners() == []


# Those that no rule about texts would find; the second list is MariaDB's alone.
ENDING = [
    "CALL dataapp_commits()",
    "CALL dataapp_begins()",
    "SELECT 1; COMMIT",
    "START /* a comment */ TRANSACTION",
    "UNLOCK /* a comment */ TABLES",
    "/*!999999 SELECT */ COMMIT",  # no server is so new: it skips that comment
    "SET @x = 1, autocommit = 1",
    "INSTALL PLUGIN dataapp_none SONAME 'none'",  # commits first, and fails then
]
MARIADB_ENDING = [
    "SET STATEMENT max_statement_time = 1 FOR COMMIT",
    "BEGIN NOT ATOMIC COMMIT; END",
    "EXECUTE IMMEDIATE 'COMMIT'",
]


@pytest.mark.parametrize("sql", ENDING + MARIADB_ENDING)
def test_told_after_the_statement_and_at_the_end(sql: str) -> None:
    if sql in MARIADB_ENDING and not is_mariadb():
        with pytest.raises(ProgrammingError):
            run(sql)
        return
    with failing(LockLost, match=re.escape(sql[:20])):
        add("committed")
        with pytest.raises(LockLost, match=re.escape(sql[:20])):
            run(sql)
        with pytest.raises(transaction.TransactionManagementError):
            add("refused")
    assert owners() == ["committed"]
    with table_lock(Account, using=DB):  # nothing is left of it
        add("next")
    assert owners() == ["committed", "next"]


@pytest.mark.parametrize("where", ["callproc", "driver", "driver, marked for rollback", "results that are read later"])
def test_told_at_the_end(where: str) -> None:
    """Of these no wrapper of statements hears, or too early."""
    with failing(LockLost, match="has ended its transaction"):
        add("committed")
        with connections[DB].cursor() as cursor:
            if where == "callproc":
                cursor.callproc("dataapp_begins")
            elif where.startswith("driver"):
                connections[DB].connection.commit()
            else:
                cursor.execute("CALL dataapp_answers()")
        if "marked" in where:  # whoever does so believes that nothing is kept
            transaction.set_rollback(True, using=DB)
        else:
            add("rolled back")
    assert owners() == ["committed"]


def test_told_in_an_inner_atomic() -> None:
    """Its savepoint is gone, too."""
    with failing(LockLost, match="CALL"):
        with suppress(LockLost), transaction.atomic(using=DB):
            add("committed")
            run("CALL dataapp_commits()")
        with pytest.raises(transaction.TransactionManagementError):
            add("refused")
    assert owners() == ["committed"]


def test_r14_an_error_of_the_block_goes_on_with_a_note() -> None:
    with failing(ZeroDivisionError) as caught:
        add("committed")
        connections[DB].connection.commit()
        raise ZeroDivisionError
    assert "is committed" in caught.value.__notes__[0]
    with failing(ZeroDivisionError) as caught:
        add("rolled back")
        raise ZeroDivisionError
    assert not hasattr(caught.value, "__notes__")
    assert owners() == ["committed"]


def test_what_ends_nothing_is_let_through() -> None:
    with table_lock(Account, using=DB):
        add("kept")
        run("CALL dataapp_asks()")
        run("CREATE TEMPORARY TABLE dataapp_passing (id int)")
        run("DROP TEMPORARY TABLE IF EXISTS dataapp_passing")
        run("SET @x = 1")
        run("SELECT 1; SELECT 2")
        run("SHOW TABLES")
    assert owners() == ["kept"]


def test_savepoints_of_the_block_outlive_what_is_asked() -> None:
    with table_lock(Account, using=DB):
        add("kept")
        run("/* a comment */ SAVEPOINT mine")
        add("undone")
        run("SET @x = 1")
        with pytest.raises(Error):
            run("SET @@no_such_variable = 1")
        run("-- a comment\nROLLBACK TO mine")
    assert owners() == ["kept"]


def test_the_orm_costs_two_statements_a_block() -> None:
    """One SAVEPOINT, one RELEASE; nothing for each of its statements."""
    with counted(DB) as found, sent(DB) as texts, table_lock(Account, using=DB):
        add("x")
        Account.objects.using(DB).filter(owner="x").update(balance=1)
        assert Account.objects.using(DB).count() == 1
    ours = {text: number for text, number in found.items() if "SAVEPOINT" in text}
    assert sum(ours.values()) == 2, found
    assert not [text for text in texts if "SAVEPOINT" in text], "Django's log has the caller's statements"


def test_a_long_comment_does_not_take_for_ever() -> None:
    for part in ("-- ", "/*", "/*!", "# ", "( ;", "/* */ -- # "):
        assert ENDS.match(part * 5_000) is HARMLESS.match(part * 5_000) is None
