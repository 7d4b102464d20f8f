"""What the answers of N nodes amount to, for all of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_distlock.backends.redlock.rounds import NodeAnswer, Verdict, confirm, decide, heard, majority, validity
from django_distlock.records import drift

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
