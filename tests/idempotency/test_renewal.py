"""Claims are renewed while their view runs, also if a server, or a connection, no longer answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from django_distlock.idempotency.storage import storage_of
from tests.conftest import PATIENCE, eventually
from tests.faults.conftest import database_alias
from tests.faults.proxy import Proxy
from tests.idempotency.world import Running, Sender, Stage, on_servers, sql, states

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.tier2
LEASE = 2.4  # renewed each third of it; a busy machine may be late by one


def rounds() -> list[threading.Thread]:
    """The threads that have asked a server to renew something, and have no answer yet."""
    return [thread for thread in threading.enumerate() if thread.name == "idempotency-renewal-round"]


@pytest.fixture
def proxy(site: Stage, alias: str, settings: Any) -> Iterator[Proxy]:
    """Between this process and the keys; what views write goes past it."""
    server = connections.settings[alias]
    with (
        Proxy(server["HOST"], int(server["PORT"])) as proxy,
        database_alias(f"{alias}_proxied", alias, PORT=str(proxy.port)) as proxied,
    ):
        settings.DISTLOCK_IDEMPOTENCY = {"DATABASE": proxied, "CLAIM_TTL": LEASE}
        yield proxy
        proxy.heal()
        proxy.cut()
        eventually(lambda: not rounds(), "a round of renewals is left")


class Watched:
    """How long the only claim of a database lives, or the only other one, and whether it ever ran out."""

    def __init__(self, alias: str, but: str = "") -> None:
        self.alias, self.ran_out = alias, False
        ((self.scope,),) = sql(alias, "SELECT scope FROM {keys} WHERE scope <> %s", but)

    def until(self) -> int:
        found = storage_of(self.alias).read(self.scope)
        assert found is not None
        self.ran_out |= found.expired
        return int(sql(self.alias, "SELECT expires_at FROM {keys} WHERE scope = %s", self.scope)[0][0])

    def is_renewed(self, times: int = 1) -> None:
        for _ in range(times):
            before = self.until()
            eventually(lambda before=before: self.until() > before, "it is not renewed")


def test_a_view_that_takes_longer_than_the_lease_keeps_its_claim(site: Stage, sender: Sender) -> None:
    with Running(site, lambda: sender.post("brief")):
        watched = Watched(site.alias)
        watched.is_renewed(4)  # by then the first lease is over
        assert not watched.ran_out
        assert Sender(sender.key).post("brief").json()["code"] == "in_flight"
    assert (len(site.runs), states(site.alias)) == (1, ["completed"])


@pytest.mark.parametrize("alias", ["postgres"])
def test_a_reply_that_never_comes_costs_one_round_and_no_claim(site: Stage, key: str, alias: str, proxy: Proxy) -> None:
    """The server is well, and one connection is dead: each in turn of the messages of a renewal, from the first of the
    handshake, has no answer. Naive code waits for it as long as TCP does, and the claim runs out."""
    with Running(site, lambda: Sender(key).post()):
        watched = Watched(alias)
        for nth in range(1, 8):
            proxy.swallow(nth)
            watched.is_renewed()
        stuck = len(rounds())
        proxy.heal()
        assert not watched.ran_out
        assert Sender(key).post().json()["code"] == "in_flight"
    assert stuck >= 3, "there is no fault to guard against"


@on_servers
@pytest.mark.usefixtures("atomic_requests")
def test_a_phase_in_the_transaction_of_the_request_ties_up_nobody(site: Stage, key: str, alias: str) -> None:
    """It locks the row of the claim until the request has ended. Naive code lets each round of renewals wait for that,
    with a connection of its own, and all other claims with them."""
    acted, go_on = threading.Event(), threading.Event()

    def during(request: Any) -> None:
        with request.idempotency.phase("charge"):
            pass
        acted.set()
        assert go_on.wait(PATIENCE)

    first = threading.Thread(target=lambda: (Sender(key).post("brief"), connections.close_all()))
    site.during = during
    first.start()
    try:
        assert acted.wait(PATIENCE)
        watched = Watched(alias)
        eventually(lambda: watched.until() and watched.ran_out, "the claim does not run out")
        with Running(site, lambda: Sender("two").post("brief")):
            Watched(alias, watched.scope).is_renewed(5)
            begun = set(rounds())
            # one may have been on its way when the phase was saved
            eventually(lambda: len(begun & set(rounds())) <= 1, "they wait")
    finally:
        go_on.set()
        first.join(PATIENCE)
    assert states(alias) == ["completed"] * 2
