"""One contract for every storage: the database on three engines, each with the statements of its own and with those for
databases that are not known, Redis, and Django's cache in memory."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from django.core.cache import caches
from django.db import connections, transaction

from django_distlock import BackendUnavailable
from django_distlock.idempotency.records import KeyClaim, Record, StoredResponse
from django_distlock.idempotency.storage import purge
from django_distlock.idempotency.storage.cache import CacheStorage
from django_distlock.idempotency.storage.database import DatabaseStorage
from django_distlock.idempotency.storage.portable import PortableStorage
from tests.idempotency.conftest import Sender, forget_everything
from tests.idempotency.test_races import at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.idempotency.storage import Storage
    from tests.idempotency.views import Stage

ANSWER = StoredResponse(
    status=201, headers=(("Location", "/é/"),), body=b"\x00\xff", messages=((20, "Säved", "x", True),)
)
STORAGES = {
    "default": DatabaseStorage,
    "postgres": DatabaseStorage,
    "mariadb": DatabaseStorage,
    "portable-default": PortableStorage,
    "portable-postgres": PortableStorage,
    "portable-mariadb": PortableStorage,
    "redis": CacheStorage,
    "memory": CacheStorage,
}


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, databases: None, tables: None) -> Iterator[Storage]:
    kind = STORAGES[request.param]
    alias = "default" if request.param == "memory" else request.param.removeprefix("portable-")
    yield kind(alias)
    if issubclass(kind, DatabaseStorage):
        forget_everything(alias)
    else:
        caches[alias].clear()


def claim_of(key: str, owner: str = "me", claim_ttl: float = 30, ttl: float = 60) -> KeyClaim:
    scope = key.ljust(64, "0")
    return KeyClaim(
        scope=scope, owner=owner, fingerprint="f" * 64, claim_ttl=claim_ttl, ttl=ttl, method="POST", route="r"
    )


def read(storage: Storage, claim: KeyClaim) -> Record:
    found = storage.read(claim.scope)
    assert found is not None
    return found


def let_expire(storage: Storage, claim: KeyClaim) -> None:
    """The claim has just expired: in a table after its ``claim_ttl``, in a cache with the entry of its owner."""
    if isinstance(storage, CacheStorage):
        caches[storage.alias].delete(f"django_distlock:idempotency:alive:{claim.owner}")
    else:
        time.sleep(2 * claim.claim_ttl)


def test_the_first_claim_wins(storage: Storage, key: str) -> None:
    assert storage.claim(claim_of(key)) is None
    found = storage.claim(claim_of(key, "other"))
    assert found is not None
    assert (found.state, found.owner, found.expired, found.phases) == ("claimed", "me", False, {})


def test_one_of_many_claims_wins(storage: Storage, key: str) -> None:
    owners = iter([f"owner{number}" for number in range(8)])
    found = at_once(lambda: storage.claim(claim_of(key, next(owners))))
    assert found.count(None) == 1


def test_an_answer_comes_back_as_it_was(storage: Storage, key: str) -> None:
    claim = claim_of(key)
    storage.claim(claim)
    assert storage.complete(claim, ANSWER)
    found = read(storage, claim)
    assert (found.state, found.answer) == ("completed", ANSWER)
    assert not storage.complete(claim, ANSWER)
    assert not storage.release(claim)


def test_a_tombstone_may_get_its_body(storage: Storage, key: str) -> None:
    claim = claim_of(key)
    storage.claim(claim)
    storage.complete(claim, replace(ANSWER, body=None))
    assert read(storage, claim).answer == replace(ANSWER, body=None)
    assert storage.add_body(claim, ANSWER)
    assert read(storage, claim).answer == ANSWER
    assert not storage.add_body(claim_of(key, "other"), ANSWER)


def test_who_has_lost_the_claim_writes_nothing(storage: Storage, key: str) -> None:
    mine, other = claim_of(key, claim_ttl=0.01), claim_of(key, "other")
    storage.claim(mine)
    let_expire(storage, mine)
    found = read(storage, mine)
    assert found.expired
    assert storage.take_over(found, other)
    assert not storage.take_over(found, claim_of(key, "third"))
    assert not storage.complete(mine, ANSWER)
    assert not storage.release(mine)
    assert not storage.renew(mine)
    assert not storage.save_phases(mine, "{}")
    assert storage.complete(other, ANSWER)


def test_one_of_many_takes_over(storage: Storage, key: str) -> None:
    storage.claim(claim_of(key, claim_ttl=0.01))
    let_expire(storage, claim_of(key, claim_ttl=0.01))
    found = read(storage, claim_of(key))
    owners = iter([f"owner{number}" for number in range(8)])
    assert at_once(lambda: storage.take_over(found, claim_of(key, next(owners)))).count(True) == 1


def test_a_claim_that_is_renewed_does_not_run_out(storage: Storage, key: str) -> None:
    claim = claim_of(key, claim_ttl=0.01)
    storage.claim(claim)
    assert storage.renew(claim_of(key, claim_ttl=30))
    time.sleep(0.02)
    assert not read(storage, claim).expired


def test_release_frees_and_failure_keeps_the_phases(storage: Storage, key: str) -> None:
    claim = claim_of(key)
    storage.claim(claim)
    assert storage.save_phases(claim, '{"charge": 7}')
    assert storage.release(claim, failed=True)
    found = read(storage, claim)
    assert (found.state, found.phases) == ("failed", {"charge": 7})
    other = claim_of(key, "other")
    assert storage.take_over(found, other)
    assert storage.release(other)
    assert storage.read(claim.scope) is None


def test_what_ran_out_can_be_held(storage: Storage, key: str) -> None:
    claim = claim_of(key, claim_ttl=0.01)
    storage.claim(claim)
    let_expire(storage, claim)
    assert storage.hold(read(storage, claim), 60)
    found = read(storage, claim)
    assert (found.state, found.expired) == ("unknown", False)
    # its process was only slow
    assert storage.complete(claim, ANSWER)
    assert read(storage, claim).state == "completed"


def test_what_has_been_renewed_is_not_taken_over(storage: Storage, key: str) -> None:
    claim = claim_of(key, claim_ttl=0.01)
    storage.claim(claim)
    let_expire(storage, claim)
    found = read(storage, claim)
    assert found.expired
    assert storage.renew(claim_of(key))
    assert not storage.take_over(found, claim_of(key, "other"))
    assert not storage.hold(found, 60)
    assert storage.complete(claim_of(key), ANSWER)
    assert not storage.take_over(found, claim_of(key, "other"))
    assert not storage.hold(found, 60)
    assert read(storage, claim).answer == ANSWER


def test_phases_that_were_saved_last_are_taken_over(storage: Storage, key: str) -> None:
    claim, other = claim_of(key, claim_ttl=0.01), claim_of(key, "other")
    storage.claim(claim)
    let_expire(storage, claim)
    found = read(storage, claim)
    assert storage.save_phases(claim, '{"charge": 7}')
    let_expire(storage, claim)
    assert storage.take_over(found, other)
    assert read(storage, other).phases == {"charge": 7}


@pytest.mark.parametrize("text", ["", "no json", "[]", '{"scope": 1}', "\x80\x04K\x01.", "null"])
def test_a_torn_entry_counts_as_unknown(key: str, text: str) -> None:
    storage = CacheStorage("default")
    claim = claim_of(key)
    caches["default"].set(f"django_distlock:idempotency:{claim.scope}", text)
    assert read(storage, claim).state == "unknown"


def test_a_cache_that_keeps_nothing_is_an_error(key: str, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": "tests.idempotency.silent.SilentCache"}}
    with pytest.raises(BackendUnavailable):
        CacheStorage("default").claim(claim_of(key))


@pytest.mark.parametrize("kind", [DatabaseStorage, PortableStorage])
@pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])
def test_purge_in_batches(alias: str, kind: type[DatabaseStorage], databases: None, tables: None) -> None:
    storage = kind(alias)
    for number in range(25):
        storage.claim(claim_of(f"{number:02d}", ttl=0.001 if number < 20 else 1000, claim_ttl=0.001))
    time.sleep(0.005)
    try:
        assert storage.purge(older_than=60) == 0
        assert storage.purge(batch=7, batches=1) == 7
        assert storage.purge(batch=7) == 13
        assert storage.purge() == 0
        assert storage.read("20".ljust(64, "0")) is not None
        assert purge() == 0
    finally:
        forget_everything(alias)


@pytest.mark.parametrize("cache", ["redis", "default"])
@pytest.mark.parametrize("shape", ["plain", "async", "decorated"])
def test_a_site_on_a_cache(site: Stage, key: str, settings: Any, cache: str, shape: str) -> None:
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "STORAGE": "cache", "CACHE": cache}
    answers = at_once(lambda: Sender(key).post(shape))
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert Sender(key).post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1
    caches[cache].clear()


DOWN = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}}


@pytest.mark.parametrize("shape", ["plain", "async", "decorated", "open"])
def test_a_store_that_is_down(site: Stage, sender: Sender, settings: Any, shape: str) -> None:
    settings.CACHES = DOWN
    settings.DISTLOCK_IDEMPOTENCY = {"STORAGE": "cache"}
    response = sender.post(shape)
    if shape == "open":
        assert response.status_code == 201
        assert site.effects == 1
        return
    assert (response.status_code, response.json()["code"]) == (503, "store_unavailable")
    assert response["Retry-After"] == "5"
    assert site.effects == 0


def test_a_store_that_is_down_for_the_exactly_once_mode(site: Stage, sender: Sender) -> None:
    with connections[site.alias].cursor() as cursor:
        cursor.execute("ALTER TABLE django_distlock_idempotency RENAME TO distlock_away")
    try:
        assert sender.post("atomic").status_code == 503
        assert sender.post("plain").status_code == 503
    finally:
        with connections[site.alias].cursor() as cursor:
            cursor.execute("ALTER TABLE distlock_away RENAME TO django_distlock_idempotency")
    assert site.effects == 0


@pytest.mark.parametrize("alias", ["mariadb"])
def test_the_lock_in_front_may_be_away(site: Stage, sender: Sender, settings: Any) -> None:
    """It saves a duplicate a wait, and no more: the table alone answers each of them rightly."""
    away = {"BACKEND": "django_distlock.backends.redis.RedisBackend", "OPTIONS": {"url": "redis://127.0.0.1:1"}}
    settings.DISTLOCK = {**settings.DISTLOCK, "away": away}
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "LOCK": "away"}
    assert [sender.post("atomic").status_code for _ in range(2)] == [201, 201]
    assert site.effects == 1


@pytest.mark.parametrize("alias", ["default", "postgres", "mariadb"])
def test_a_store_that_fails_after_the_view(site: Stage, sender: Sender) -> None:
    """In the exactly-once mode nothing is committed then; else the view's answer is given, and the log tells."""

    def forget(request: Any) -> None:
        with connections[site.alias].cursor() as cursor:
            cursor.execute("DELETE FROM django_distlock_idempotency")

    site.during = forget
    assert sender.post("atomic").status_code == 503
    assert site.effects == 0
    assert sender.post("plain").status_code == 201
    assert site.effects == 1


def test_who_comes_late_takes_over_nothing(storage: Storage, key: str) -> None:
    """It has read a claim that ran out, and slept. Another one has taken over and answered since, and the cache has
    forgotten who won."""
    storage.claim(claim_of(key, claim_ttl=0.01))
    let_expire(storage, claim_of(key, claim_ttl=0.01))
    found = read(storage, claim_of(key))
    other = claim_of(key, "other", claim_ttl=0.01)
    assert storage.take_over(found, other)
    assert storage.complete(other, ANSWER)
    time.sleep(0.02)
    assert not storage.take_over(found, claim_of(key, "third"))
    assert read(storage, other).answer == ANSWER


def test_the_winner_is_seen_in_a_snapshot_that_is_older(key: str, databases: None, tables: None) -> None:
    """REPEATABLE READ on MariaDB: naive code reads from its snapshot, and finds nothing to answer with.

    MariaDB stands in for the databases of this storage, and its own setting is off for it: with the setting on, the
    server ends the transaction instead. See test_snapshot_isolation.py for the storage that MariaDB has.
    """
    connection, storage = connections["mariadb"], PortableStorage("mariadb")
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
        if cursor.fetchone():
            cursor.execute("SET SESSION innodb_snapshot_isolation = OFF")
    try:
        with transaction.atomic("mariadb"):
            with connection.cursor() as cursor:
                cursor.execute("SELECT COUNT(*) FROM django_distlock_idempotency")  # the snapshot is taken
            assert at_once(lambda: storage.claim(claim_of(key, "winner")), 1) == [None]
            found = storage.claim(claim_of(key, "late"))
        assert found is not None
        assert found.owner == "winner"
    finally:
        connection.close()
        forget_everything("mariadb")
