"""``manage.py distlock doctor`` at Oracle's MySQL: what MariaDB has not, or has otherwise."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import advisory_lock, held_locks
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.data import asking
from tests.data.app.models import Account
from tests.data.asking import another
from tests.faults.server import ask, is_mariadb
from tests.operations.test_doctor import said
from tests.operations.test_doctor_servers import MYSQL, role

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def on_mysql(databases: None) -> None:
    if is_mariadb():
        pytest.skip("this run has MariaDB in MySQL's place; DISTLOCK_MYSQL=1 has the other")


@contextmanager
def waiting_for_a_row() -> Iterator[int]:
    """The number of a session that waits in the block for a row of another's."""
    account = Account.objects.using("mariadb").create(owner="x")
    query = f"SELECT * FROM dataapp_account WHERE id = {account.pk} FOR UPDATE"
    with another("mariadb") as holder, another("mariadb") as waiter:
        holder.set_autocommit(False)
        asking.ask(holder, query)
        number = asking.ask(waiter, "SELECT CONNECTION_ID()")[0][0]
        waiter.inc_thread_sharing()
        thread = threading.Thread(target=asking.ask, args=(waiter, query))
        thread.start()
        try:
            waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"
            eventually(lambda: ask("mariadb", waits)[0][1] != "0", "nobody waits")
            yield number
        finally:
            holder.rollback()
            thread.join()
    account.delete(using="mariadb")


@contextmanager
def lock_of_another(key: str) -> Iterator[str]:
    """Who holds a named lock in the block, as the server says."""
    with another("mariadb") as holder:
        ((got, account, number),) = asking.ask(holder, "SELECT GET_LOCK(%s, 0), USER(), CONNECTION_ID()", key)
        assert got == 1
        yield f"{account}, connection {number}"


def rows(alias: str) -> list[str]:
    """Who waits for a row."""
    (report,) = held_locks(alias)
    return [info.details["blocks"] for info in report.locks if info.details.get("kind") == "row"]


def test_what_an_account_sees_without_the_privilege_process(settings: Any) -> None:
    """Everything but waits for rows: the doctor says so, and it is so."""
    with lock_of_another("of-another") as holder, waiting_for_a_row() as waiter, role("mariadb") as account:
        ask("mariadb", f"GRANT SELECT ON performance_schema.* TO {account}@'127.0.0.1'")
        found = said(settings, MYSQL, database="mariadb")
        assert not found["warning"]
        (told,) = (text for text in found["info"] if "PROCESS" in text)
        assert [info.holder for info in held_locks("sick")[0].locks if info.key == "of-another"] == [holder]
        assert not rows("sick")
        ask("mariadb", f"GRANT PROCESS ON *.* TO {account}@'127.0.0.1'")
        registry.reset()
        assert "PROCESS" not in str(said(settings, MYSQL, database="mariadb"))
        assert rows("sick") == [str(waiter)]
    assert told.startswith("Without the privilege PROCESS those that wait for a row are not listed.")
    assert "GRANT PROCESS" in told


def test_a_server_that_notes_no_locks(settings: Any, name: str) -> None:
    instrument = (
        "UPDATE performance_schema.setup_instruments SET ENABLED = %s WHERE NAME = 'wait/lock/metadata/sql/mdl'"
    )
    ask("mariadb", instrument, "NO")
    try:
        (warning,) = said(settings, MYSQL, database="mariadb")["warning"]
        with advisory_lock(name, using="sick"):
            (info,) = (info for info in held_locks("sick")[0].locks if info.name == name)
            assert info.waiters is None
    finally:
        ask("mariadb", instrument, "YES")
    assert "does not show its named locks" in warning
    assert "enable the instrument wait/lock/metadata/sql/mdl" in warning
    assert not said(settings, MYSQL, database="mariadb")["warning"]


def test_a_server_that_is_read_only(settings: Any) -> None:
    ask("mariadb", "SET GLOBAL read_only = ON")
    try:
        (warning,) = said(settings, MYSQL, database="mariadb")["warning"]
    finally:
        ask("mariadb", "SET GLOBAL read_only = OFF")
    assert "read-only, perhaps a replica" in warning
