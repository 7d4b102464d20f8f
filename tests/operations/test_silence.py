"""Servers that hang: who looks is told within seconds which one it is, the others are shown, and nothing piles up."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import held_locks
from django_distlock.manager.introspection import MOST_ABANDONED
from django_distlock.manager.registry import registry
from django_distlock.models import IdempotencyRecord
from django_distlock.testing import race
from tests.conftest import connect, eventually
from tests.faults.conftest import proxied
from tests.operations.programs import list_first
from tests.operations.world import UNAVAILABLE, call
from tests.support import services
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from tests.faults.conftest import Proxied

__all__ = ["proxied"]
pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.tier2]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("distlock-list")]


@pytest.mark.parametrize("using", ["postgres", "mysql", "leasetable_postgres"])
def test_a_server_that_hangs_is_one_error_of_the_list(using: str, proxied: Proxied, settings: Any) -> None:
    proxy = proxied(using)
    hung = {f"hung{number}": settings.DISTLOCK[using] for number in range(2)}
    settings.DISTLOCK = {**hung, "memory": settings.DISTLOCK["memory"]}
    connect("hung0")
    proxy.blackhole()
    began = time.monotonic()
    errors = {report.alias: bool(report.error) for report in held_locks()}
    within(time.monotonic() - began, 4.0)  # for both: they are asked at the same time
    assert errors == {"default": False, "hung0": True, "hung1": True, "memory": False}
    proxy.cut()
    eventually(lambda: not threads(), "a thread is left behind")


def test_those_who_look_again_and_again_at_what_hangs_do_not_pile_up(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where names of hosts are not resolved, a look comes back after minutes; the page is reloaded meanwhile."""
    settings.DISTLOCK = {alias: settings.DISTLOCK[alias] for alias in ("memory", "redis")}
    goes_on = threading.Event()
    monkeypatch.setattr(registry.entry("redis").backend, "inspect", lambda: goes_on.wait(60) and [])
    for _ in range(3):
        for reports in race(held_locks, MOST_ABANDONED):
            assert {report.alias: report.error for report in reports}.items() >= {
                ("redis", "TimeoutError"),
                ("memory", None),
            }
        assert threads().count("distlock-list-redis") == MOST_ABANDONED
    goes_on.set()
    eventually(lambda: not threads(), "a thread is left behind")
    assert [report.error for report in held_locks("redis")] == [None]


def test_prune_does_the_rest_and_says_which_server_hangs(proxied: Proxied, settings: Any) -> None:
    proxy = proxied("leasetable_postgres")
    settings.DISTLOCK = {alias: settings.DISTLOCK[alias] for alias in ("leasetable_postgres", "leasetable")}
    for database in ("default", "mariadb"):
        record = IdempotencyRecord(scope="hung", state="done", claimed_at=0, expires_at=0, lives_until=0)
        record.save(using=database, force_insert=True)
    proxy.blackhole()
    status, out, err = call("prune")
    assert (status, "idempotency: 2 deleted" in out) == (UNAVAILABLE, True)
    assert "'postgres_proxied' does not answer within 2 s" in err
    assert services.load()["postgres"]["password"] not in err


@pytest.mark.parametrize(
    ("alias", "module"),
    [("postgres", "django_distlock.backends.postgres"), ("redis", "django_redis.client")],
)
def test_the_first_listing_imports_drivers_before_its_time_begins(alias: str, module: str) -> None:
    with Child(list_first, alias, module) as child:
        assert child.hear() == [None, True]
