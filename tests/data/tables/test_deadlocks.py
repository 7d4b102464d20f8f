"""R8: a circle through table locks is found by the server."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from django.db import connections, transaction

from django_distlock import DeadlockDetected, DistlockError, table_lock
from tests.data.app.models import Account, Currency
from tests.data.asking import when_somebody_waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.data.rival import Rival


@pytest.fixture(autouse=True)
def clean(fresh: None) -> Iterator[None]:
    yield
    for using in ("postgres", "mariadb"):
        Account.objects.using(using).all().delete()
        Currency.objects.using(using).all().delete()


@pytest.mark.parametrize("using", ["postgres", "mariadb"])
def test_r8_a_writer_and_a_table_lock(using: str, rival: Rival) -> None:
    """The rival has written the second table; the lock has the first and waits; then the rival writes that too."""
    outcomes: list[str] = []
    assert rival.ask("begin", using, "Currency") == "begun"

    def lock() -> None:
        try:
            with table_lock(Account, Currency, using=using, timeout=8):
                outcomes.append("done")
        except DistlockError as error:
            outcomes.append(type(error).__name__)
        finally:
            connections.close_all()

    thread = threading.Thread(target=lock)
    thread.start()
    with when_somebody_waits(using, lambda: None):
        pass
    outcomes.append(rival.ask("insert", using, "Account"))
    rival.leave()
    thread.join()
    assert "done" in outcomes
    assert {"OperationalError", "DeadlockDetected"} & set(outcomes)


def test_r8_a_deadlock_has_one_victim(rival: Rival) -> None:
    outcomes = []
    with transaction.atomic(using="postgres"):
        assert rival.lock("postgres", "Currency")[0] == "held"
        with table_lock(Account, using="postgres"):
            rival.tell("lock", "postgres", ["Account"], "write", 8)
            with when_somebody_waits("postgres", lambda: None):
                pass
            try:
                with table_lock(Currency, using="postgres", timeout=8):
                    outcomes.append("held")
            except DeadlockDetected as error:
                outcomes.append(type(error).__name__)
                transaction.set_rollback(True, using="postgres")
    outcomes.append(rival.child.hear()[0])
    if outcomes[1] == "held":
        rival.leave()
    rival.leave()
    assert sorted(outcomes) == ["DeadlockDetected", "held"]
