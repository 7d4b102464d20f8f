"""Claims whose process died, and phases that are not repeated."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpResponse

from django_distlock.idempotency.storage import storage_of
from tests.idempotency.world import Sender, Stage, by_task, die, expire, sql, states
from tests.transactions import rows


@pytest.mark.parametrize("shape", ["plain", "hold", "decorated"])
def test_what_may_have_been_done_is_not_done_again(site: Stage, sender: Sender, shape: str) -> None:
    """No option says that the view may run twice. Naive code runs it when the claim has expired."""
    die(site, lambda: sender.post(shape))
    assert states(site.alias) == ["claimed"]
    assert sender.post(shape).json()["code"] == "in_flight", "before the lease is over it counts as running"
    expire(site.alias)
    for _ in range(2):
        assert sender.post(shape).json()["code"] == "outcome_unknown"
    assert (site.effects, states(site.alias)) == (1, ["unknown"])
    scopes = [scope for (scope,) in sql(site.alias, "SELECT scope FROM {keys}")]
    assert storage_of(site.alias).free(scopes) == 1  # type: ignore[attr-defined]
    assert sender.post(shape).status_code == 201


def test_what_may_be_repeated_or_looks_for_itself(site: Stage, sender: Sender) -> None:
    for shape in ("retry", "callable", "undecided"):
        die(site, lambda shape=shape: sender.post(shape))  # type: ignore[misc]
    expire(site.alias)
    assert [sender.post("callable").content for _ in range(2)] == [b"found", b"found"]
    assert sender.post("undecided").status_code == 500
    assert len(site.runs) == 3
    assert sender.post("retry").status_code == 201
    assert sender.post("retry")["Idempotency-Replayed"] == "true"
    assert len(site.runs) == 4


# -- phases


def test_finished_phases_are_not_repeated(site: Stage, sender: Sender) -> None:
    charged: list[str] = []

    def pay(request: Any) -> None:
        with request.idempotency.phase("charge") as charge:
            if not charge.done:
                charged.append(charge.key)
                charge.result = {"id": 7}
        assert charge.result == {"id": 7}
        with request.idempotency.phase("mail") as mail:
            assert not mail.done
            if len(site.runs) == 1:
                raise RuntimeError("the mail server is down")
        assert charge.key == request.idempotency.derive("charge") != mail.key

    site.during = pay
    assert sender.post().status_code == 500
    assert states(site.alias) == ["failed"]
    assert sender.post().status_code == 201
    assert (len(charged), len(site.runs)) == (1, 2)


@pytest.mark.parametrize("died", [False, True])
def test_phases_of_other_data_are_forgotten(site: Stage, sender: Sender, died: bool) -> None:
    """Naive code takes the charge for A as that for B, also after B has died before its own."""
    done: list[bool] = []

    def pay(request: Any) -> None:
        with request.idempotency.phase("charge") as charge:
            done.append(charge.done)
        if len(done) == 1:
            raise RuntimeError("boom")

    site.during = pay
    sender.post("retry", {"amount": 1})
    if died:
        die(site, lambda: sender.post("retry", {"amount": 2}))
        expire(site.alias)
        site.during = pay
    assert sender.post("retry", {"amount": 2}).status_code == 201
    assert done == [False, False]


def test_phases_in_a_task(site: Stage, key: str) -> None:
    async def pay(request: Any) -> None:
        async with request.idempotency.phase("charge") as charge:
            charge.result = [1]

    site.during = pay
    site.answer = lambda request: HttpResponse(status=500)
    assert by_task("async", key).status_code == 500
    assert sql(site.alias, "SELECT phases FROM {keys}") == [('{"charge": [1]}',)]


@pytest.mark.parametrize(("alias", "shape"), [("default", "plain"), ("postgres", "atomic"), ("mariadb", "plain")])
@pytest.mark.usefixtures("atomic_requests")
def test_a_phase_is_rolled_back_with_what_it_has_written(site: Stage, sender: Sender, shape: str) -> None:
    """Another service, which is not rolled back, knows the repetition by the key."""
    keys: set[str] = set()

    def order(request: Any) -> None:
        with request.idempotency.phase("order") as step:
            keys.add(step.key)
            if not step.done:
                rows.write(site.alias, f"{site.name}-phase")
        if len(site.runs) == 1:
            raise RuntimeError("the mail server is down")

    site.during = order
    assert [sender.post(shape).status_code for _ in range(2)] == [500, 201]
    assert rows.count(site.alias, f"{site.name}-phase") == 1
    assert len(keys) == 1
