"""RedlockBackend: what the answers of N nodes amount to; options, requests, errors, and what an operator sees."""

from __future__ import annotations

import os
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_distlock import BackendUnavailable, held_locks
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.backends.redlock.quorum import Answer, Verdict, confirm, decide, validity
from django_distlock.records import drift

if TYPE_CHECKING:
    from tests.engines.redlock.conftest import Nodes

G, R, F, P = Answer.YES, Answer.NO, Answer.FAILED, Answer.PENDING
TTL = 10.0
EVERY = [answers for nodes in range(1, 6) for answers in product((G, R, F, P), repeat=nodes)]


def verdict_of(answers: Any, elapsed: float = 0.1) -> Verdict:
    return decide(answers, in_time=validity(TTL, elapsed) > 0)


def enough(count: int, answers: Any) -> bool:
    return count > len(answers) / 2


def test_r1_granted_by_a_majority_in_time_whatever_the_others_say() -> None:
    """And whatever they say later: no grant is lost that waiting would have brought, and none is revoked."""
    for answers in EVERY:
        count = answers.count
        verdict = verdict_of(answers)
        assert (verdict is Verdict.GRANTED) == enough(count(G), answers), answers
        assert (verdict is Verdict.WAIT) == (not enough(count(G), answers) and enough(count(G) + count(P), answers))
        assert (verdict is Verdict.UNAVAILABLE) == (not enough(len(answers) - count(F), answers)), answers
        assert verdict_of(answers, TTL) is not Verdict.GRANTED
        for late in (G, R, F):
            then = verdict_of([late if answer is P else answer for answer in answers], 0.2)
            assert verdict is Verdict.WAIT or (then is Verdict.GRANTED) == (verdict is Verdict.GRANTED), answers
    assert validity(TTL, 4.0) == pytest.approx(6.0 - drift(TTL))


def test_r1_two_never_both_win() -> None:
    """Whatever the order in which the nodes hear them: each node grants one of them only."""
    for nodes in range(1, 7):
        for votes in product(range(3), repeat=nodes):
            wins = [verdict_of([G if vote == me else R for vote in votes]) is Verdict.GRANTED for me in range(3)]
            assert sum(wins) <= 1, votes


def test_r5_r17_still_ours_lost_or_not_known() -> None:
    """Lost means that a majority may be somebody else's. It ends when nobody is waited for, or when the TTL is over."""
    for answers in EVERY:
        count, verdict = answers.count, confirm(answers)
        lost = not enough(len(answers) - count(R), answers)
        assert (verdict is Verdict.GRANTED) == enough(count(G), answers), answers
        assert (verdict is Verdict.REFUSED) == lost, answers
        assert verdict_of(answers, TTL) is not Verdict.WAIT, answers
        unknown = Verdict.WAIT if P in answers else Verdict.UNAVAILABLE
        assert verdict in (Verdict.GRANTED, Verdict.REFUSED, unknown), answers


A, B, C, D = (f"redis://127.0.0.1:{port}/0" for port in range(1, 5))
BACKEND = "django_distlock.backends.redlock.RedlockBackend"


def test_options_and_checks(settings: Any) -> None:
    nodes: list[dict[str, Any]] = [{}, {"nodes": A}, {"nodes": []}, {"nodes": [A, 1]}]
    times = [{"nodes": [A, B, C], "node_timeout": value} for value in (0, -1, True, "1", float("inf"))]
    for options in nodes + times:
        with pytest.raises(ImproperlyConfigured, match="DISTLOCK\\['five'\\]"):
            RedlockBackend("five", options)
    for urls, ids in (
        ([A, B, C], []),
        ([A, B], ["distlock.E022"]),
        ([A, B, C, D], ["distlock.W021"]),
        ([A, B, B], ["distlock.E021"]),
        ([A, B, "nocache"], ["distlock.E023"]),
        ([A, B, "http://x"], ["distlock.E023"]),
    ):
        settings.DISTLOCK = {"default": {"BACKEND": BACKEND, "OPTIONS": {"nodes": urls}}}
        assert [message.id for message in run_checks(tags=["distlock"])] == ids


def test_one_request_to_each_node_to_take_it_and_one_to_give_it_back(nodes: Nodes, name: str) -> None:
    lock = nodes.lock(name)
    nodes.connect(name)
    nodes.gone()
    before = nodes.calls("evalsha")
    for _ in range(10):
        lock.acquire().release()
        nodes.quiet()
    assert nodes.calls("evalsha") == [was + 20 for was in before]


def test_the_list_is_of_all_nodes_and_what_cannot_be_read_is_held_by_somebody(nodes: Nodes, name: str) -> None:
    nodes.connect(name)
    with nodes.held(name):
        nodes.clients[0].flushall()
        nodes.clients[1].hset("redlock:{garbage}:held", b"\xff", b"\xff{")
        nodes.clients[2].set("redlock:{garbage}:held", "x")
        (report,) = held_locks("five")
        (ours,) = [info for info in report.locks if info.name == name]
        assert ours.details["nodes"] == "4 of 5"
        assert f":{os.getpid()}:" in str(ours.holder)
        assert {info.holder for info in report.locks if info.key == "garbage"} == {"unknown"}
        for info in report.locks:
            if info.key == "garbage":
                assert nodes.engine.break_lock(info)
    assert not any(client.exists("redlock:{garbage}:held") for client in nodes.clients)


def test_r6_a_key_with_a_byte_above_127_can_be_broken(nodes: Nodes) -> None:
    nodes.clients[0].hset(b"redlock:{\xff}:held", b"xsomebody", b"9999999999999 {}")
    (info,) = [info for info in nodes.engine.inspect() if info.key == "\xff"]
    assert nodes.engine.break_lock(info)
    assert not nodes.engine.break_lock(info)
    assert not nodes.clients[0].exists(b"redlock:{\xff}:held")


def test_r6_the_error_says_who_failed_and_who_took_too_long(nodes: Nodes, name: str) -> None:
    nodes.connect(name)
    lock = nodes.lock(name, timeout=1)
    with nodes.down(0, 1, 2), pytest.raises(BackendUnavailable, match=r"^3 of 5 Redis nodes failed: 1, 2, 3 \(\w+"):
        lock.acquire()
    nodes.connect(name)
    with nodes.down(0), nodes.silent(2, 3):
        said = r"^2 of 5 Redis nodes did not answer in time: 3, 4; 1 failed: 1 \(\w+"
        with pytest.raises(BackendUnavailable, match=said) as caught:
            lock.acquire()
        assert type(caught.value.__cause__) is TimeoutError
