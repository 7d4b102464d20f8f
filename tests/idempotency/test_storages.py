"""One contract for every storage: the table in three databases, Redis, and Django's cache in memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.core.cache import caches
from django.core.cache.backends.dummy import DummyCache
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_distlock import BackendUnavailable
from django_distlock.idempotency.records import KeyClaim, Record, StoredResponse
from django_distlock.idempotency.storage import Storage, purge, storage_of
from django_distlock.idempotency.storage.cache import PREFIX, CacheStorage
from django_distlock.idempotency.storage.database import DatabaseStorage
from tests.idempotency.world import (
    DATABASES,
    Sender,
    Stage,
    at_once,
    change,
    every_database,
    forget_everything,
    sql,
)
from tests.support.findings import findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ANSWER = StoredResponse(
    status=201, headers=(("Location", "/é/"),), body=b"\x00\xff", messages=((20, "Säved", "x", True),)
)
STORAGES: dict[str, Any] = {
    **dict.fromkeys(DATABASES, DatabaseStorage),
    "redis": CacheStorage,
    "memory": CacheStorage,
}


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, databases: None, tables: None) -> Iterator[Storage]:
    kind = STORAGES[request.param]
    alias = "default" if request.param == "memory" else request.param
    yield kind(alias)
    if issubclass(kind, DatabaseStorage):
        forget_everything(alias)
    else:
        caches[alias].clear()


def claim_of(key: str, owner: str = "me", **lifetimes: float) -> KeyClaim:
    lasts: Any = {"claim_ttl": 30, "ttl": 60} | lifetimes
    scope = key.ljust(64, "0")
    return KeyClaim(scope=scope, owner=owner, fingerprint="f" * 64, method="POST", route="r", **lasts)


def read(storage: Storage, claim: KeyClaim) -> Record:
    found = storage.read(claim.scope)
    assert found is not None
    return found


def let_expire(storage: Storage, claim: KeyClaim) -> Record:
    """The claim has just expired: in a table by its time, in a cache with the entry of its owner."""
    if isinstance(storage, CacheStorage):
        caches[storage.alias].delete(f"{PREFIX}alive:{claim.owner}")
    else:
        sql(storage.alias, "UPDATE {keys} SET expires_at = 1 WHERE scope = %s", claim.scope)
    found = read(storage, claim)
    assert found.expired
    return found


def expired(storage: Storage, claim: KeyClaim) -> Record:
    assert storage.claim(claim) is None
    return let_expire(storage, claim)


def eight_at_once(act: Any) -> list[Any]:
    owners = iter([f"owner{number}" for number in range(8)])
    return at_once(lambda: act(next(owners)))


def test_the_first_claim_wins(storage: Storage, key: str) -> None:
    assert storage.claim(claim_of(key)) is None
    found = storage.claim(claim_of(key, "other"))
    assert found is not None
    assert (found.state, found.owner, found.expired, found.phases) == ("claimed", "me", False, {})
    assert eight_at_once(lambda owner: storage.claim(claim_of(key[::-1], owner))).count(None) == 1


def test_an_answer_comes_back_as_it_was(storage: Storage, key: str) -> None:
    """A tombstone may get its body."""
    claim = claim_of(key)
    storage.claim(claim)
    assert storage.complete(claim, replace(ANSWER, body=None))
    assert read(storage, claim).answer == replace(ANSWER, body=None)
    assert storage.add_body(claim, ANSWER)
    found = read(storage, claim)
    assert (found.state, found.answer) == ("completed", ANSWER)
    assert not storage.add_body(claim_of(key, "other"), ANSWER)
    assert not storage.complete(claim, ANSWER)
    assert not storage.release(claim)


def test_who_has_lost_the_claim_writes_nothing(storage: Storage, key: str) -> None:
    """One of many has taken over."""
    mine = claim_of(key)
    found = expired(storage, mine)
    assert eight_at_once(lambda owner: storage.take_over(found, claim_of(key, owner))).count(True) == 1
    other = claim_of(key, read(storage, mine).owner)
    assert not storage.take_over(found, claim_of(key, "third"))
    assert not storage.complete(mine, ANSWER)
    assert not storage.release(mine)
    assert not storage.renew(mine)
    assert not storage.save_phases(mine, "{}")
    assert storage.complete(other, ANSWER)
    if isinstance(storage, CacheStorage):  # it has forgotten who won
        caches[storage.alias].delete_many([f"{PREFIX}alive:me", f"{PREFIX}alive:{other.owner}"])
    assert not storage.take_over(found, claim_of(key, "third"))
    assert read(storage, other).answer == ANSWER


def test_release_frees_and_failure_keeps_the_phases(storage: Storage, key: str) -> None:
    """Those that were saved last are taken over, also by who has read the claim before."""
    claim, other = claim_of(key), claim_of(key, "other")
    storage.claim(claim)
    assert storage.save_phases(claim, '{"charge": 7}')
    assert storage.release(claim, failed=True)
    found = read(storage, claim)
    assert (found.state, found.phases) == ("failed", {"charge": 7})
    assert storage.take_over(found, other)
    assert storage.release(other)
    assert storage.read(claim.scope) is None
    found = expired(storage, claim)
    assert storage.save_phases(claim, '{"charge": 8}')
    let_expire(storage, claim)
    assert storage.take_over(found, other)
    assert read(storage, other).phases == {"charge": 8}


def test_what_has_been_renewed_is_not_taken_over_and_what_ran_out_can_be_held(storage: Storage, key: str) -> None:
    claim = claim_of(key)
    found = expired(storage, claim)
    assert storage.renew(claim)
    assert not read(storage, claim).expired
    assert not storage.take_over(found, claim_of(key, "other"))
    assert not storage.hold(found, 60)
    assert storage.hold(let_expire(storage, claim), 60)
    held = read(storage, claim)
    assert (held.state, held.expired) == ("unknown", False)
    assert storage.complete(claim, ANSWER), "its process was only slow"
    assert not storage.take_over(found, claim_of(key, "other"))
    assert not storage.hold(found, 60)
    assert read(storage, claim).answer == ANSWER


class Midway(CacheStorage):
    """Before the nth of its operations, another thread or process does something."""

    def __init__(self, alias: str, nth: int, act: Callable[[], object]) -> None:
        super().__init__(alias)
        self.left, self.act = nth, act

    def _call(self, *args: Any) -> Any:
        self.left -= 1
        if self.left == -1:
            self.act()
        return super()._call(*args)


ENDS: dict[str, tuple[Callable[[Storage, KeyClaim], object], Any]] = {
    "complete": (lambda storage, claim: storage.complete(claim, ANSWER), ("completed", ANSWER)),
    "release": (lambda storage, claim: storage.release(claim), None),
    "fail": (lambda storage, claim: storage.release(claim, failed=True), ("failed", None)),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_late_renewal_undoes_no_answer_and_brings_no_freed_key_back(key: str, end: str) -> None:
    """It is in another thread than the request, which ends meanwhile. Naive code writes back what it has read."""
    act, expected = ENDS[end]
    storage = CacheStorage("default")
    for nth in range(5):
        claim = claim_of(f"{key}{nth}", f"me{nth}")
        storage.claim(claim)
        late = Midway("default", nth, partial(act, storage, claim))
        late.renew(claim)
        assert late.left < 0, "a renewal has fewer operations"
        found = storage.read(claim.scope)
        assert (found and (found.state, found.answer)) == expected
        assert end != "fail" or storage.take_over(read(storage, claim), replace(claim, owner="next"))


def test_a_claim_is_either_renewed_or_taken_over(key: str) -> None:
    """A request finds an expired claim, which is renewed late: the first request still runs."""
    seen, storage = [], CacheStorage("default")
    for nth in range(5):
        renewed: list[bool] = []
        claim = claim_of(f"{key}{nth}", f"me{nth}")
        found = expired(storage, claim)
        late = Midway("default", nth, partial(lambda claim, told: told.append(storage.renew(claim)), claim, renewed))
        taken = late.take_over(found, replace(claim, owner="other"))
        assert renewed == [not taken]
        assert read(storage, claim).owner == ("other" if taken else claim.owner)
        seen.append(taken)
    assert set(seen) == {True, False}


def test_an_answer_that_comes_while_another_request_notes_that_there_is_none(key: str) -> None:
    """The claim of a slow view has expired, and a copy writes "unknown" in the moment in which the view ends."""
    storage = CacheStorage("default")
    for nth in range(4):
        claim = claim_of(f"{key}{nth}", f"me{nth}")
        found, sent = expired(storage, claim), []
        with ThreadPoolExecutor(1) as pool:

            def answer(pool: Any = pool, claim: KeyClaim = claim, sent: list[Any] = sent) -> None:
                sent.append(pool.submit(storage.complete, claim, ANSWER))
                wait(sent, 0.1)

            Midway("default", nth, answer).hold(found, 60)
        assert sent[0].result()
        assert read(storage, claim).answer == ANSWER


class SilentCache(DummyCache):
    """As django-redis with IGNORE_EXCEPTIONS and a server that is down."""

    def __init__(self, *args: Any) -> None:
        super().__init__("", {})

    def add(self, *args: Any, **kwargs: Any) -> bool:
        return False


def test_torn_entries_are_unknown_and_a_cache_that_keeps_nothing_an_error(key: str, settings: Any) -> None:
    storage, claim = CacheStorage("default"), claim_of(key)
    for text in ("", "no json", "[]", '{"scope": 1}', "\x80\x04K\x01.", "null"):
        caches["default"].set(f"{PREFIX}{claim.scope}", text)
        assert read(storage, claim).state == "unknown", text
    caches["default"].clear()
    settings.CACHES = {"default": {"BACKEND": f"{__name__}.SilentCache"}}
    with pytest.raises(BackendUnavailable):
        storage.claim(claim)


@every_database
def test_purge_in_batches(alias: str, databases: None, tables: None) -> None:
    """What still runs is left. PostgreSQL may join in a loop: a batch is chosen once, and not for each row."""
    storage = DatabaseStorage(alias)
    for way in ("hashjoin", "mergejoin", "hashagg", "sort", "material") if alias == "postgres" else ():
        sql(alias, f"SET enable_{way} = off")
    for number in range(25):
        storage.claim(claim_of(f"{number:02d}"))
    sql(alias, "UPDATE {keys} SET lives_until = 1 WHERE scope < '21'")
    sql(alias, "UPDATE {keys} SET expires_at = 1 WHERE scope < '20'")
    try:
        assert [storage.purge(batch=7), purge(), storage.purge()] == [7, 13, 0]
        assert storage.read("20".ljust(64, "0")) is not None
    finally:
        forget_everything(alias)
        connections[alias].close()


def test_an_unknown_database_is_refused(
    site: Stage, sender: Sender, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle, CockroachDB, ...: before the view acts, and by a check. With a cache the site works."""
    monkeypatch.setattr(type(connections[site.alias]), "vendor", "unheard_of")
    assert "distlock.E035" in {message.id for message in findings()}
    with pytest.raises(ImproperlyConfigured, match='"STORAGE"] = "cache"'):
        storage_of()
    assert (sender.post().status_code, site.effects) == (500, 0)
    change(settings, STORAGE="cache")
    assert [sender.post().status_code for _ in range(2)] == [201, 201]
    assert site.effects == 1
    assert purge() == 0
