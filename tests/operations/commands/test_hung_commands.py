"""The commands where one server hangs: each ends in time, says which one it was, and does the rest of its work."""

from __future__ import annotations

import io
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from django_distlock import BackendUnavailable
from django_distlock.backends import side_connection
from django_distlock.models import IdempotencyRecord
from django_distlock.operations import pruning
from django_distlock.operations.pruning import prune
from django_distlock.schema import Pruner
from tests.faults.conftest import proxied
from tests.faults.proxy import Proxy
from tests.operations.commands.test_list import call
from tests.operations.programs import operate
from tests.support import services
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.faults.conftest import Proxied

__all__ = ["proxied"]
pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]

# What is kept on a server: of an alias, two seconds to find out; of the databases, two more.
PRUNED_WITHIN = 5.0
EX_UNAVAILABLE = 69


@pytest.fixture
def old() -> Iterator[None]:
    """An idempotency key, on the default database and on those of the servers, that nobody needs any more."""
    kept = ("default", "postgres", "mariadb")
    for database in kept:
        record = IdempotencyRecord(scope="hung", state="done", claimed_at=0, expires_at=0, lives_until=0)
        record.save(using=database, force_insert=True)
    yield
    for database in kept:
        IdempotencyRecord.rows.using(database).filter(scope="hung").delete()


def left(database: str) -> int:
    return IdempotencyRecord.rows.using(database).filter(scope="hung").count()


@pytest.mark.parametrize("using", ["leasetable_postgres", "leasetable_mariadb", "postgres", "mysql"])
def test_prune(using: str, proxied: Proxied, settings: Any, old: None) -> None:
    proxy = proxied(using)
    settings.DISTLOCK = {alias: settings.DISTLOCK[alias] for alias in (using, "leasetable")}
    proxy.blackhole()
    began = time.monotonic()
    with pytest.raises(CommandError) as failed:
        call("prune")
    within(time.monotonic() - began, PRUNED_WITHIN)
    assert failed.value.returncode == EX_UNAVAILABLE
    assert f"alias '{using}'" in str(failed.value)
    assert [left(database) for database in ("default", "postgres", "mariadb")] == [0, 0, 0]


def test_what_prune_has_done_and_what_not(proxied: Proxied, settings: Any, old: None) -> None:
    """Both are said, the passwords of neither."""
    settings.DISTLOCK = {alias: settings.DISTLOCK[alias] for alias in ("leasetable_postgres", "leasetable")}
    proxied("leasetable_postgres").blackhole()
    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(CommandError, match="leasetable_postgres"):
        call_command("distlock", "prune", stdout=out, stderr=err, no_color=True)
    assert "idempotency: 3 deleted" in out.getvalue()
    (line,) = err.getvalue().splitlines()
    assert "'postgres_proxied' does not answer within 2 s" in line
    assert "idempotency" in line


def test_a_server_that_hangs_while_its_database_is_pruned(
    proxied: Proxied, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = proxied("leasetable_postgres")
    settings.DISTLOCK = {}

    def delete(database: str, days: float) -> int:
        with connections[database].cursor() as cursor:
            cursor.execute("SELECT 1")
            proxy.blackhole()
            cursor.execute("SELECT 1")
        return 1

    monkeypatch.setattr(pruning, "_pruners", lambda: {"some": Pruner(lambda: ["postgres_proxied"], delete)})
    began = time.monotonic()
    with pytest.raises(BackendUnavailable, match="The some in 'postgres_proxied' cannot be pruned"):
        prune()
    within(time.monotonic() - began, 10.0)  # and what comes after it


def test_prune_waits_for_a_server_that_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or for rows that somebody else has locked: only one that does not answer at all is given up."""

    def delete(database: str, days: float) -> int:
        with connections[database].cursor() as cursor:
            cursor.execute("SELECT pg_sleep(1)")
        return 7

    monkeypatch.setattr(side_connection, "PATIENCE", 0.2)
    monkeypatch.setattr(pruning, "_pruners", lambda: {"some": Pruner(lambda: ["postgres"], delete)})
    assert prune()["some"] == 7


# the default database, where the site key is


@pytest.mark.parametrize(
    ("arguments", "status", "seconds", "said"),
    [
        (["prune"], EX_UNAVAILABLE, 10, "'leases'"),
        (["list", "--table"], 0, 4, "leases"),
        (["break", "x", "--yes"], 1, 10, "The lock 'x' is not held."),
        (["run", "x", "--using", "other", "--", "true"], EX_UNAVAILABLE, 4, "site key"),
        (["doctor"], 1, 15, "The site key of django-distlock could not be read"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_default_database_that_hangs(arguments: list[str], status: int, seconds: float, said: str) -> None:
    server = services.load()["postgres"]
    with Proxy(server["host"], server["port"]) as proxy:
        proxy.blackhole()
        with Child(operate, "postgres", proxy.port, *arguments) as child:
            found, took, out, err = child.hear()
    assert (found, said in out + err) == (status, True), f"{found} {out} {err}"
    within(took, seconds, what=arguments)
    assert server["password"] not in out + err


def test_a_default_database_that_was_stopped() -> None:
    """As far as the kernel answers for it."""
    server = services.load()["postgres"]
    services.signal("postgres", signal.SIGSTOP)
    try:
        with Child(operate, "postgres", server["port"], "prune") as child:
            status, took, out, err = child.hear()
    finally:
        services.signal("postgres", signal.SIGCONT)
    assert status == EX_UNAVAILABLE, err
    within(took, 10)
    # who is well is pruned
    assert "leases: " in out
    assert "idempotency: " in out
