"""One attempt at a lock: the questions, and what is made of the answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .redlock_quorum import Answer, Verdict, confirm, decide
from .redlock_scripts import NOT_YOUR_TURN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.waiting import Flow

    from .redlock_claims import Ballot
    from .redlock_inquiry import Judge, Outcome
    from .redlock_nodes import Slot


def attempt(ballot: Ballot, lead: int, *, waits: bool, busy: bool, patience: float, until: float) -> Flow[Outcome]:
    """Ask everybody at once; a name that is ``busy`` first at ``lead`` alone, and everybody when that has granted it.

    Several who ask everybody at the same time get a part of the votes each, and nobody a majority.
    """
    asked, lane = time.monotonic(), ballot.lane
    if waits and busy:
        questions = ballot.questions(lead, waits=True, only_lead=True)
        outcome = yield from lane.ask(questions, _by_lead(lead), asked=asked, patience=patience, until=until)
        ballot.note(outcome, lead, waits, time.monotonic() - asked)
        if outcome.verdict is Verdict.REFUSED:
            return outcome
        if outcome.verdict is Verdict.GRANTED:
            ballot.led_by = lead
    questions = ballot.questions(lead, waits=waits)
    judge = _by_majority(lead, ballot.ttl)
    outcome = yield from lane.ask(questions, judge, asked=asked, patience=patience, until=until)
    ballot.note(outcome, lead, waits, time.monotonic() - asked)
    return outcome


def _by_majority(lead: int, ttl: float) -> Judge:
    def judge(answers: Sequence[Answer], elapsed: float, patience: float, slots: Sequence[Slot | None]) -> Verdict:
        slot = slots[lead]
        if slot is not None and isinstance(slot.reply, int) and slot.reply <= -NOT_YOUR_TURN:
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


def by_holders(answers: Sequence[Answer], elapsed: float, patience: float, slots: Sequence[Slot | None]) -> Verdict:
    """For questions about a lock that was ours."""
    return confirm(answers, elapsed=elapsed, patience=patience)


def repeated(outcome: Outcome) -> bool:
    """Is what the nodes failed to say a "no" to something asked twice?"""
    return any(slot is not None and slot.done and slot.reply == 0 for slot in outcome.slots)
