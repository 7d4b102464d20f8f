"""Stored answers can be encrypted, and a request whose answer cannot be decrypted never runs a second time."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpResponse, JsonResponse

from django_distlock.idempotency.storage import storage_of
from tests.idempotency.world import Sender, Stage, change, expire, sql, states
from tests.support.findings import findings

SECRET = "Smith-4-Privet-Drive"
FIRST, SECOND = "the first key of this site", "the second key of this site"


@pytest.fixture(autouse=True)
def encrypted(site: Stage, settings: Any) -> None:
    """Personal data is in the body, in a header and in the result of a phase."""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = FIRST, []
    change(settings, ENCRYPT=True)
    site.during = charge
    site.answer = lambda request: JsonResponse({"address": SECRET}, status=201, headers={"Location": f"/{SECRET}/"})


def rotate(settings: Any, *fallbacks: str) -> None:
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = SECOND, list(fallbacks)


def charge(request: Any) -> None:
    with request.idempotency.phase("charge") as step:
        step.result = step.result or SECRET


def at_rest(alias: str) -> bytes:
    """Everything that the rows have."""
    values = [value for row in sql(alias, "SELECT * FROM {keys}") for value in row]
    return b" ".join(bytes(v) if isinstance(v, bytes | memoryview) else str(v).encode() for v in values)


@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_nothing_of_an_answer_can_be_read_in_the_table(site: Stage, sender: Sender, settings: Any, shape: str) -> None:
    first, again = sender.post(shape), sender.post(shape)
    assert again["Idempotency-Replayed"] == "true"
    assert (again.content, again["Location"]) == (first.content, first["Location"])
    found = at_rest(site.alias)
    assert b"completed" in found
    assert SECRET.encode() not in found
    assert b"charge" not in found
    rotate(settings, FIRST)
    assert sender.post(shape)["Idempotency-Replayed"] == "true"
    rotate(settings)
    again = sender.post(shape)  # it is done: never a second run, and never a server error
    assert (again.status_code, again.json()["code"]) == (409, "already_completed")
    assert site.effects == 1


def test_nothing_of_an_answer_can_be_read_in_a_cache(site: Stage, sender: Sender, settings: Any) -> None:
    change(settings, STORAGE="cache")
    assert sender.post().content == sender.post().content
    cache: Any = caches["default"]
    kept = b"".join(cache._cache.values())
    cache.clear()
    assert (site.effects, b"completed" in kept, SECRET.encode() in kept) == (1, True, False)


@pytest.mark.parametrize(("shape", "died"), [("retry", True), ("plain", True), ("plain", False)])
def test_phases_of_a_retired_key_are_kept(site: Stage, sender: Sender, settings: Any, shape: str, died: bool) -> None:
    """The first attempt has charged: without the result of that phase a second one would charge twice."""

    def charge_and_fail(request: Any) -> None:
        charge(request)
        raise OSError("the mail server is away")

    site.during = charge_and_fail
    assert sender.post(shape).status_code == 500
    if died:
        sql(site.alias, "UPDATE {keys} SET state = 'claimed'")
        expire(site.alias)
    rotate(settings)
    site.during = charge
    again = sender.post(shape)
    assert (again.status_code, again.json()["code"]) == (409, "outcome_unknown")
    assert len(site.runs) == 1
    rotate(settings, FIRST)
    if shape == "retry" or not died:
        assert sender.post(shape).status_code == 201
        assert states(site.alias) == ["completed"]


def test_what_stands_in_another_row_or_is_torn_cannot_be_read(site: Stage, sender: Sender) -> None:
    """Write access to the table does not let an attacker give one client's answer to another."""
    sender.post()
    ((answer,),) = sql(site.alias, "SELECT answer FROM {keys}")
    site.answer = lambda request: HttpResponse("harmless", status=201)
    Sender("other").post()
    sql(site.alias, "UPDATE {keys} SET answer = %s", answer)
    assert Sender("other").post().status_code == 409
    assert sender.post().status_code == 201
    for torn in ("", "AAAA", "%%%", "é", "A" * 200):
        sql(site.alias, "UPDATE {keys} SET answer = %s", f"encrypted:{torn}".encode())
        assert sender.post().status_code == 409
    assert site.effects == 2


def test_it_can_be_switched_on_and_off(site: Stage, sender: Sender, settings: Any) -> None:
    """What was stored before is read after."""
    for first in (True, False):
        for encrypt in (first, not first):
            change(settings, ENCRYPT=encrypt)
            response = sender.post(key=f"{first}")
        assert response["Idempotency-Replayed"] == "true"


def test_without_the_package(site: Stage, sender: Sender, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check tells; a request fails before its view has acted; and what was sealed is a tombstone without it."""
    sender.post()
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    assert [message.id for message in findings()] == ["distlock.E064"]
    with pytest.raises(ImproperlyConfigured, match="encryption"):
        storage_of()
    assert Sender("new").post().status_code == 500
    assert site.effects == 1
    change(settings, ENCRYPT=False)
    assert sender.post().json()["code"] == "already_completed"
