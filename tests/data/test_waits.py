"""The caller's own timeouts are as before, whatever they were."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction

from django_distlock import LockTimeout
from django_distlock.data.errors import code_of, lock_errors
from django_distlock.data.timeouts import DEFAULT_TIMEOUT, resolve, wait_limit
from django_distlock.validation import UNSET
from tests.data.app.models import Account
from tests.data.asking import limits
from tests.faults.server import is_mariadb, statement_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

ODD = {"postgres": ["1d", "0", "1500ms", "7min"], "mariadb": ["86400", "0", "7"], "default": ["0", "5000", "123"]}
CASES = [(using, value) for using, values in ODD.items() for value in values]


@pytest.fixture(autouse=True)
def open_databases(databases: None) -> Iterator[None]:
    """A session of its own: what a test sets in it ends with it."""
    connections.close_all()
    yield
    connections.close_all()


def run(using: str, sql: str) -> Any:
    with connections[using].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else None


def put(using: str, value: str) -> None:
    if using == "postgres":
        run(using, f"SET lock_timeout = '{value}'")
        run(using, f"SET statement_timeout = '{value}'")
    elif using == "mariadb":
        number = f"SESSION lock_wait_timeout = {value}, SESSION innodb_lock_wait_timeout = {value}"
        run(using, "SET {}, SESSION {} = {}".format(number, *statement_limit(float(f"{value}.123456"))))
    else:
        run(using, f"PRAGMA busy_timeout = {value}")


def settings(using: str) -> Any:
    return run(using, limits(using))


@pytest.mark.parametrize(("using", "value"), CASES)
def test_put_back_after_success(using: str, value: str) -> None:
    put(using, value)
    before = settings(using)
    with transaction.atomic(using=using):
        with wait_limit(connections[using], 2.5):
            inside = settings(using)
        assert settings(using) == before
    assert settings(using) == before
    assert inside != before


@pytest.mark.parametrize(("using", "value"), CASES)
def test_put_back_after_an_error(using: str, value: str) -> None:
    put(using, value)
    before = settings(using)
    with pytest.raises(OperationalError), transaction.atomic(using=using), wait_limit(connections[using], 0.7):
        raise OperationalError
    assert settings(using) == before


def test_a_local_value_of_the_callers_own() -> None:
    with transaction.atomic(using="postgres"):
        run("postgres", "SET LOCAL lock_timeout = '1d'")
        savepoint, limit = transaction.atomic(using="postgres"), wait_limit(connections["postgres"], 1)
        with pytest.raises(OperationalError), savepoint, limit:
            raise OperationalError
        assert settings("postgres")[0][0] == "1d"
        with transaction.atomic(using="postgres"), wait_limit(connections["postgres"], 1):
            pass
        assert settings("postgres")[0][0] == "1d"
    assert settings("postgres")[0][0] == "0"


def test_naive_code_leaves_its_timeout_behind() -> None:
    """SET LOCAL survives the release of a savepoint: this is what the explicit restore is for."""
    with transaction.atomic(using="postgres"):
        with transaction.atomic(using="postgres"):
            run("postgres", "SET LOCAL lock_timeout = '100ms'")
        assert settings("postgres")[0][0] == "100ms"


@pytest.mark.parametrize("using", ["postgres", "mariadb"])
def test_a_wait_for_a_row_ends_and_marks_the_transaction(using: str) -> None:
    connection, other = connections[using], connections[using].copy()
    account = Account.objects.using(using).create(owner="x")
    query = f"SELECT * FROM dataapp_account WHERE id = {account.pk} FOR UPDATE"
    try:
        other.ensure_connection()
        other.set_autocommit(False)
        other.cursor().execute(query)
        with transaction.atomic(using=using):
            errors, limit = lock_errors(connection, "The row", 0.1), wait_limit(connection, 0.1)
            with pytest.raises(LockTimeout) as caught, errors, limit:
                run(using, query)
            assert connection.needs_rollback
            with pytest.raises(transaction.TransactionManagementError):
                run(using, "SELECT 1")
            connection.rollback_exc = None
    finally:
        other.close()
        account.delete()
    assert isinstance(caught.value.__cause__, OperationalError)
    # MySQL's own limit on a statement is not used here: it would be on SELECT only
    mine = ("55P03", "57014") if using == "postgres" else (1969 if is_mariadb() else 1205,)
    assert code_of(caught.value.__cause__) in mine


def test_resolve() -> None:
    assert resolve(UNSET) == DEFAULT_TIMEOUT
    assert resolve(None) is None
    assert resolve(2) == 2.0
    with pytest.raises(ValueError, match="timeout"):
        resolve(-1)
    with pytest.raises(TypeError, match="timeout"):
        resolve(True)
