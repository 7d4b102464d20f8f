"""One attempt at a lock: the questions, and what is made of the answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_distlock.concurrency.clock import monotonic

from .quorum import Answer, Verdict, confirm, decide
from .scripts import PLACES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.concurrency.flow import Flow

    from .acquire import Ballot
    from .inquiry import Judge, Outcome, Question
    from .lanes import Lane
    from .nodes import Slot

# Who had the lock waits so much longer for the rest of the nodes: so that nobody meets what is just being deleted, and
# to hear who has lost it. Seconds.
SETTLE = 0.005


def lead_of(ballot: Ballot) -> int:
    """The node at which waiters stand: the same for all processes as long as it is well and knows the holder."""
    lines, now = ballot.lane.lines, monotonic()
    first = ballot.claim.key.digest[0] % len(lines)
    order = [(first + step) % len(lines) for step in range(len(lines))]
    healthy = [index for index in order if lines[index].healthy(now)] or order
    return healthy[ballot.strange_leads % len(healthy)]


def attempt(ballot: Ballot, lead: int, *, waits: bool, busy: bool, patience: float, until: float) -> Flow[Outcome]:
    """Ask everybody at once; a name that is ``busy`` first at ``lead`` alone, and everybody when that has granted it.

    Several who ask everybody at the same time get a part of the votes each, and nobody a majority.
    """
    lane = ballot.lane
    for only_lead in (True, False) if waits and busy else (False,):
        questions = ballot.questions(lead, waits=waits, only_lead=only_lead)
        judge = _by_lead(lead) if only_lead else _by_majority(lead, ballot.ttl)
        asked = monotonic()
        outcome = yield from lane.ask(questions, judge, asked=asked, patience=patience, until=until)
        ballot.record(lane.slots, lead if waits else None)
        ballot.note(outcome.slots[lead])
        if outcome.verdict is Verdict.REFUSED:
            break
        if only_lead and outcome.verdict is not Verdict.GRANTED:
            ballot.take_back()  # nobody knows what comes of it: a node is asked once for one vote
    return outcome


def _by_majority(lead: int, ttl: float) -> Judge:
    def judge(answers: Sequence[Answer], elapsed: float, patience: float, slots: Sequence[Slot | None]) -> Verdict:
        slot = slots[lead]
        if slot is not None and isinstance(slot.reply, int) and -PLACES <= slot.reply < 0:
            return Verdict.REFUSED  # it is free, but others came first
        return decide(answers, elapsed=elapsed, ttl=ttl, patience=patience)

    return judge


_OF_LEAD = {Answer.GRANTED: Verdict.GRANTED, Answer.REFUSED: Verdict.REFUSED}


def _by_lead(lead: int) -> Judge:
    def judge(answers: Sequence[Answer], elapsed: float, patience: float, slots: Sequence[Slot | None]) -> Verdict:
        if answers[lead] in (Answer.PENDING, Answer.SLOW) and elapsed < patience:
            return Verdict.WAIT
        return _OF_LEAD.get(answers[lead], Verdict.UNAVAILABLE)

    return judge


def confirmed(
    lane: Lane,
    votes: list[Slot | None],
    question: Question,
    again: Question | None,
    *,
    patience: float,
    until: float,
) -> Flow[Outcome]:
    """Ask about a lock that was ours by ``votes`` (see Session). ``again`` asks a node anew for a vote that it has not.

    That is done when a majority has confirmed the others: whoever counted the new ones at once would not notice that
    somebody else had a majority meanwhile. And not while an old one is being taken back there.
    """
    # who was never asked for its vote need not hear of it, unless that is to change
    questions = [question if again or vote is not None else None for vote in votes]
    asked = monotonic()
    judge = _by_holders(votes)
    outcome = yield from lane.ask(questions, judge, asked=asked, patience=patience, until=until, settle=SETTLE)
    if again is not None and outcome.verdict is Verdict.GRANTED:
        for index, answer in enumerate(outcome.answers):
            vote = votes[index]
            if vote is not None and vote.lost and lane.lines[index].debts.owes(vote):
                continue
            if answer is Answer.REFUSED:
                votes[index] = lane.ask_aside(index, again) or vote
            elif answer is Answer.GRANTED:  # from now on, if it was lost
                votes[index] = outcome.slots[index]
    return outcome


def _by_holders(votes: Sequence[Slot | None]) -> Judge:
    def judge(answers: Sequence[Answer], elapsed: float, patience: float, slots: Sequence[Slot | None]) -> Verdict:
        counted = [
            Answer.FAILED if vote is not None and vote.lost else answer
            for vote, answer in zip(votes, answers, strict=True)
        ]
        return confirm(counted, elapsed=elapsed, patience=patience)

    return judge


def repeated(outcome: Outcome) -> bool:
    """Is what the nodes failed to say a "no" to something asked twice?"""
    return any(slot is not None and slot.done and slot.reply == 0 for slot in outcome.slots)
