"""RedlockBackend: what the answers of N nodes amount to; options, requests, errors, and what an operator sees."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given
from hypothesis import strategies as st

from django_distlock import held_locks
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.backends.redlock.rounds import (
    NodeAnswer,
    Verdict,
    confirm,
    decide,
    heard,
    majority,
    unavailable,
    validity,
)
from django_distlock.records import drift

if TYPE_CHECKING:
    from tests.engines.redlock.nodes import Nodes


ANSWERS = st.lists(st.sampled_from(NodeAnswer), min_size=1, max_size=9)
FINAL = {NodeAnswer.GRANTED, NodeAnswer.REFUSED, NodeAnswer.FAILED}
G, R, F, P = NodeAnswer.GRANTED, NodeAnswer.REFUSED, NodeAnswer.FAILED, NodeAnswer.PENDING


SECONDS = st.floats(0, 100)
TTL, PATIENCE = 10.0, 0.5


@given(st.integers(1, 99))
def test_two_majorities_meet(nodes: int) -> None:
    assert nodes < 2 * majority(nodes) <= nodes + 2


@given(SECONDS, SECONDS)
def test_validity_is_what_is_left_less_drift(ttl: float, elapsed: float) -> None:
    assert validity(ttl, elapsed) == pytest.approx(ttl - elapsed - drift(ttl))


@given(ANSWERS, SECONDS, SECONDS, SECONDS)
def test_granted_only_by_a_majority_and_in_time(
    answers: list[NodeAnswer], elapsed: float, ttl: float, patience: float
) -> None:
    verdict = decide(answers, elapsed=elapsed, ttl=ttl, patience=patience)
    expected = answers.count(G) >= majority(len(answers)) and validity(ttl, elapsed) > 0
    assert (verdict is Verdict.GRANTED) == expected


@given(st.integers(1, 9).flatmap(lambda n: st.lists(st.integers(0, 3), min_size=n, max_size=n)))
def test_two_never_both_win(votes: list[int]) -> None:
    """Whatever the order in which the nodes hear them: each node grants one of them only."""
    wins = [
        decide([G if vote == me else R for vote in votes], elapsed=0, ttl=TTL, patience=PATIENCE) is Verdict.GRANTED
        for me in range(4)
    ]
    assert sum(wins) <= 1


@given(ANSWERS, SECONDS)
def test_it_ends_when_everybody_has_answered_or_the_time_is_over(answers: list[NodeAnswer], elapsed: float) -> None:
    verdicts = [
        decide(answers, elapsed=elapsed, ttl=TTL, patience=PATIENCE),
        confirm(answers, elapsed=elapsed, patience=PATIENCE),
        heard(answers, elapsed=elapsed, patience=PATIENCE),
    ]
    if set(answers) <= FINAL or elapsed >= PATIENCE:
        assert Verdict.WAIT not in verdicts


@given(ANSWERS, st.sampled_from([G, R, F]))
def test_a_verdict_stands_whatever_the_others_say(answers: list[NodeAnswer], late: NodeAnswer) -> None:
    """Who returned early returned what waiting would have brought: no grant is lost, none is revoked."""
    verdict = decide(answers, elapsed=0.1, ttl=TTL, patience=PATIENCE)
    then = decide([late if answer is P else answer for answer in answers], elapsed=0.2, ttl=TTL, patience=PATIENCE)
    if verdict is Verdict.GRANTED:
        assert then is Verdict.GRANTED
    elif verdict is not Verdict.WAIT:
        assert then is not Verdict.GRANTED


@given(ANSWERS)
def test_unavailable_means_that_no_majority_can_speak(answers: list[NodeAnswer]) -> None:
    count = Counter(answers)
    if decide(answers, elapsed=0.1, ttl=TTL, patience=PATIENCE) is Verdict.UNAVAILABLE:
        assert count[G] + count[R] + count[P] < majority(len(answers))


@given(ANSWERS)
def test_lost_means_that_a_majority_may_be_somebody_else_s(answers: list[NodeAnswer]) -> None:
    if confirm(answers, elapsed=0.1, patience=PATIENCE) is Verdict.REFUSED:
        assert len(answers) - answers.count(R) < majority(len(answers))


def test_five_nodes() -> None:
    for answers, verdict in (
        ([G, G, G, P, P], Verdict.GRANTED),
        ([G, G, P, P, P], Verdict.WAIT),
        ([R, R, R, P, P], Verdict.REFUSED),
        ([G, G, F, P, P], Verdict.WAIT),
        ([G, G, F, F, F], Verdict.UNAVAILABLE),
        ([G, G, R, F, F], Verdict.REFUSED),
        ([R, R, F, F, F], Verdict.UNAVAILABLE),
    ):
        assert decide(answers, elapsed=0.1, ttl=TTL, patience=PATIENCE) is verdict


def test_do_we_still_have_it() -> None:
    for answers, verdict in (
        ([G, G, G, P, P], Verdict.GRANTED),
        ([G, G, R, R, P], Verdict.WAIT),
        ([G, G, R, F, F], Verdict.UNAVAILABLE),
        ([R, R, R, P, P], Verdict.REFUSED),
    ):
        assert confirm(answers, elapsed=0.1, patience=PATIENCE) is verdict


A, B, C, D = (f"redis://127.0.0.1:{port}/0" for port in range(1, 5))


BACKEND = "django_distlock.backends.redlock.RedlockBackend"


def test_bad_options() -> None:
    nodes: list[dict[str, Any]] = [{}, {"nodes": A}, {"nodes": []}, {"nodes": [A, 1]}]
    times = [{"nodes": [A, B, C], "node_timeout": value} for value in (0, -1, True, "1", float("inf"))]
    for options in nodes + times:
        with pytest.raises(ImproperlyConfigured, match="DISTLOCK\\['five'\\]"):
            RedlockBackend("five", options)


def test_checks(settings: Any) -> None:
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


def test_one_request_to_each_node_to_take_it_and_one_to_give_it_back(nodes: Nodes, name: str, lead: int) -> None:
    """SET, and one script; at the node that keeps the line two scripts, of which the first does SET."""
    lock = nodes.lock(name)
    nodes.connect(name)
    nodes.gone()
    before = nodes.calls("evalsha"), nodes.calls("set")
    for _ in range(10):
        lock.acquire().release()
        nodes.quiet()  # a node that is behind is passed over
    assert nodes.calls("evalsha") == [was + (20 if node == lead else 10) for node, was in enumerate(before[0])]
    assert nodes.calls("set") == [was + 10 for was in before[1]]


def test_the_list_is_of_all_nodes_and_what_cannot_be_read_is_held_by_somebody(nodes: Nodes, name: str) -> None:
    nodes.connect(name)
    with nodes.held(name):
        nodes.clients[0].flushall()
        nodes.clients[1].set("redlock:{garbage}", b"\xff{", px=5000)
        nodes.clients[2].rpush("redlock:{garbage}", "x")
        (report,) = held_locks("five")
        (ours,) = [info for info in report.locks if info.name == name]
        assert ours.details["nodes"] == "4 of 5"
        assert f":{os.getpid()}:" in str(ours.holder)
        assert {info.holder for info in report.locks if info.key == "garbage"} == {"unknown"}
    for client in nodes.clients[1:3]:
        client.delete("redlock:{garbage}")


LATE, REFUSED = TimeoutError(), ConnectionRefusedError()


ERRORS: list[tuple[str, dict[int, Exception], bool, str, type]] = [
    ("PPPPG", {}, True, "4 of 5 Redis nodes did not answer in time: 1, 2, 3, 4.", TimeoutError),
    (
        "FFPPG",
        {0: REFUSED, 1: OSError()},
        True,
        "2 of 5 Redis nodes did not answer in time: 3, 4; 2 failed: 1, 2 (ConnectionRefusedError, OSError).",
        TimeoutError,
    ),
    ("RRGGG", {}, True, "No majority of the 5 Redis nodes confirms it.", type(None)),
]


def test_the_error_says_who_failed_and_who_took_too_long() -> None:
    """Who is called at night wants to know."""
    of_letter = {answer.name[0]: answer for answer in NodeAnswer}
    for answers, errors, over, said, cause in ERRORS:
        all_of = [errors.get(number) for number in range(5)]
        error = unavailable([of_letter[letter] for letter in answers], [True] * 5, all_of, over=over)
        assert str(error) == said
        assert type(error.__cause__) is cause
