"""LOCK TABLES of MySQL and MariaDB: what it names, and that what would end its transaction is refused or told."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, OperationalError, ProgrammingError, connections, transaction
from django.db.models import Exists, OuterRef

from django_distlock import LockLost, LockNotHeld, UnsupportedOperation, table_lock
from tests.data.app.models import Account, Course, Currency, Ledger, Node, Student
from tests.data.world import ask, held, sent
from tests.engines.statements import counted
from tests.faults.server import is_mariadb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.data.rival import Rival

DB = "mariadb"
PROCEDURES = {
    "commits": "COMMIT",
    "begins": "START TRANSACTION; UPDATE dataapp_account SET balance = balance + 1",
    "asks": "SELECT 1; SELECT 2",
    "answers": "COMMIT; SELECT 1; SELECT 2",
}


@pytest.fixture(scope="module")
def procedures(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        for name, body in PROCEDURES.items():
            run(f"CREATE PROCEDURE dataapp_{name}() BEGIN {body}; END")
        yield
        for name in PROCEDURES:
            run(f"DROP PROCEDURE dataapp_{name}")
        connections[DB].close()


def lock(*models: Any, **options: Any) -> table_lock:
    return table_lock(*models or [Account], using=DB, **options)


def run(sql: str) -> Any:
    return ask(connections[DB], sql)


def locked() -> bool:
    """Does the server say that this session holds the table of Account?"""
    return ("dataapp_account", "MDL_SHARED_NO_READ_WRITE") in held(DB)


def add(owner: str) -> None:
    Account.objects.using(DB).create(owner=owner)


def owners() -> list[str]:
    return list(Account.objects.using(DB).order_by("pk").values_list("owner", flat=True))


@contextmanager
def failing(error: type[Exception], match: str | None = None) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """A locked block that ends with this error."""
    with pytest.raises(error, match=match) as caught, lock():
        yield caught


def test_refused_inside_a_transaction_before_anything_is_sent() -> None:
    """Without autocommit, and inside another one, too; in a TestCase the error names the cure."""

    def refused(words: str = "inside a transaction") -> None:
        with sent(DB) as texts, pytest.raises(UnsupportedOperation, match=words):
            lock().__enter__()
        assert not texts

    with transaction.atomic(using=DB):
        add("lost")
        refused()
        transaction.set_rollback(True, using=DB)
    connections[DB].set_autocommit(False)
    refused()
    connections[DB].set_autocommit(True)
    with lock(Currency):
        refused()
        assert "dataapp_currency" in {table for table, _ in held(DB)}
    block: Any = transaction.atomic(using=DB)
    block._from_testcase = True  # else Django itself refuses the durable block
    with block:
        refused("TransactionTestCase")
    assert owners() == []


def fail() -> None:
    raise ZeroDivisionError


def test_unlocked_however_it_ends(rival: Rival) -> None:
    """COMMIT, UNLOCK TABLES, then the hooks; and the row was committed before anybody else got in."""
    seen: list[bool] = []
    with counted(DB) as found, lock():
        transaction.on_commit(lambda: seen.append(locked()), using=DB)
        add("x")
        rival.start("lock", DB, ["Account"], "write", None)
    assert rival.hear() == "held"
    rival.leave()
    assert seen == [False]
    assert found["UNLOCK TABLES"] == 1
    with lock():
        transaction.set_rollback(True, using=DB)
    assert not locked()
    with failing(ZeroDivisionError):
        transaction.on_commit(fail, using=DB)
    assert not locked()
    with failing(OperationalError), suppress(OperationalError):
        run("KILL CONNECTION_ID()")
    with lock():
        assert locked()
    assert not locked()


# What plainly ends the transaction is refused.
REFUSED = [
    *("BEGIN", " begin work", "START  TRANSACTION READ ONLY", "UNLOCK TABLES", "COMMIT", "LOCK TABLES x READ"),
    *("SET autocommit=1", "SET @@session.autocommit = ON", "TRUNCATE dataapp_account"),
    "ALTER TABLE dataapp_account ADD COLUMN x int",
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
    "CALL dataapp_answers()",
    "SELECT 1; COMMIT",
    "/* a comment */ UNLOCK TABLES",
    "/*!999999 SELECT */ COMMIT",  # no server is so new: it skips that comment
    "SET @x = 1, autocommit = 1",
    "DROP TABLE IF EXISTS dataapp_none",
    "INSTALL PLUGIN dataapp_none SONAME 'none'",  # commits first, and fails then
]
MARIADB_ENDING = ["SET STATEMENT max_statement_time = 1 FOR COMMIT", "EXECUTE IMMEDIATE 'COMMIT'"]


@pytest.mark.parametrize("sql", ENDING + MARIADB_ENDING)
def test_told_at_the_end(procedures: None, sql: str) -> None:
    if sql in MARIADB_ENDING and not is_mariadb():
        with pytest.raises(ProgrammingError):
            run(sql)
        return
    with failing(LockLost, match="has ended its transaction"):
        add("committed")
        with suppress(OperationalError, LockNotHeld):
            run(sql)
        if "autocommit" not in sql:
            with suppress(LockNotHeld):  # of a table that is not locked any more
                add("rolled back")
    with lock():  # nothing is left of it
        add("next")
    assert owners() == ["committed", "next"]


@pytest.mark.parametrize("where", ["callproc", "driver", "driver, marked for rollback"])
def test_told_at_the_end_past_djangos_statements(procedures: None, where: str) -> None:
    with failing(LockLost, match="has ended its transaction"):
        add("committed")
        if where == "callproc":
            with connections[DB].cursor() as cursor:
                cursor.callproc("dataapp_begins")
        else:
            connections[DB].connection.commit()
        if "marked" in where:  # whoever does so believes that nothing is kept
            transaction.set_rollback(True, using=DB)
        else:
            add("rolled back")
    assert owners() == ["committed"]


def test_r14_an_error_of_the_block_goes_on_with_a_note() -> None:
    with failing(ZeroDivisionError) as caught:
        add("committed")
        connections[DB].connection.commit()
        fail()
    assert "is committed" in caught.value.__notes__[0]
    with failing(ZeroDivisionError) as caught:
        add("rolled back")
        fail()
    assert not hasattr(caught.value, "__notes__")
    assert owners() == ["committed"]


def test_what_ends_nothing_is_let_through_and_costs_two_statements_a_block(procedures: None) -> None:
    """One SAVEPOINT, one RELEASE, past Django's log, which has the caller's statements."""
    with counted(DB) as found, sent(DB) as texts, lock():
        add("kept")
        run("CALL dataapp_asks()")
        run("CREATE TEMPORARY TABLE dataapp_passing (id int)")
        run("DROP TEMPORARY TABLE dataapp_passing")
        with pytest.raises(Error):
            run("SET @@no_such_variable = 1")
    assert sum(number for text, number in found.items() if "SAVEPOINT" in text) == 2, found
    assert not [text for text in texts if "SAVEPOINT" in text]
    assert owners() == ["kept"]


# Each table and alias must be named: those of the ORM are, and for others the error says how.
nodes = Node.objects.using(DB)
INNER = Node.objects.filter(parent=OuterRef("pk"))
ORM = [
    nodes.filter(parent__parent__parent__parent__name="x"),
    nodes.exclude(children__children__name="x"),
    nodes.filter(parent__in=Node.objects.filter(parent__name="x")),
    nodes.filter(Exists(Node.objects.filter(Exists(INNER), parent=OuterRef("pk")))),
    nodes.select_related("parent__parent"),
    nodes.prefetch_related("children"),
]


def test_the_aliases_of_the_orm() -> None:
    with lock(Node):
        nodes.create(name="y", parent=nodes.create(name="x"))
        for query in ORM:
            list(query.all())
    with lock(Node, aliases={Node: [f"X{number}" for number in range(64)]}):
        list(nodes.all())
    with lock(Ledger):  # a name that must be quoted
        Ledger.objects.using(DB).create(amount=1)
        assert Ledger.objects.using(DB).filter(amount=1).count() == 1


def enrolled() -> None:
    student = Student.objects.using(DB).create(name="x")
    student.courses.add(Course.objects.using(DB).create(title="y"))
    assert Student.objects.using(DB).filter(courses__title="y").get() == student


TOO_DEEP = nodes.filter(parent__parent__parent__parent__parent__name="x")
# Of the aliases that the ORM makes, each belongs to one table: whoever asks for one gets it (1066).
OTHERS = Currency.objects.using(DB).filter(Exists(Node.objects.filter(name=OuterRef("code"))))
UNNAMED: list[tuple[table_lock, str, Callable[[], Any], table_lock]] = [
    (lock(Node), r"'T6'.*aliases=", lambda: list(TOO_DEEP.all()), lock(Node, aliases={Node: ["T6"]})),
    (
        lock(Currency, Node),
        r"'U0'.*aliases=",
        lambda: list(OTHERS.all()),
        lock(Currency, Node, aliases={Node: ["U0", "T2"]}),
    ),
    (
        lock(Student, Course),
        r"'dataapp_student_courses'.*name its model in write",
        enrolled,
        lock(Student, Course, Student.courses.through),
    ),
    (lock(), r"O'Hara Ledger.*name its model in", Ledger.objects.using(DB).count, lock(Ledger)),
    (table_lock(read=[Account], using=DB), r"name its model in write=\[\.\.\.\]", lambda: add("x"), lock()),
]


def test_what_is_not_named_is_told_and_how() -> None:
    for wrong, told, work, right in UNNAMED:
        with wrong, pytest.raises(LockNotHeld, match=told) as caught:
            work()
        assert caught.value.__cause__ is not None
        with right:
            work()
