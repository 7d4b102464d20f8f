"""One question to all nodes of a lane, and what has become of it at each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from django_distlock.backends.redis.pool import FRESH
from django_distlock.backends.redis.protocol import ReplyError, unknown_script
from django_distlock.concurrency.clock import monotonic

from .lines import MOST_OWED
from .nodes import Slot
from .quorum import Answer, Verdict

if TYPE_CHECKING:
    from .lanes import Lane
    from .lines import Line

# Told the answers, and how long ago the question was put and how long an answer may take; and what each node said.
Judge = Callable[[Sequence[Answer], float, float, "Sequence[Slot | None]"], Verdict]


@dataclass(slots=True)
class Question:
    """What one node is asked: a command, and ``whole`` instead if the node does not know the script.

    ``undo`` takes back what it may have done, which is known as ``vote``. ``repeat``: it may be asked again if the
    connection was lost; asked for the second time, only "yes" is an answer. ``final``: nobody will ask again, so if it
    cannot be sent now, ``undo`` is sent when the node can be reached.
    """

    command: bytes
    whole: bytes = b""
    vote: str = ""
    undo: bytes = b""
    ttl: float = 0.0
    repeat: bool = False
    final: bool = False

    def slot(self, now: float, until: float) -> Slot:
        return Slot(now, until, self.vote, self.undo, self.ttl, final=self.final)


class Outcome(NamedTuple):
    """``over``: was that all the time that a node has for its answer?"""

    verdict: Verdict
    answers: list[Answer]
    slots: list[Slot | None]
    over: bool = False

    @property
    def lost(self) -> bool:
        """Was a connection lost, so that asking again may do better?"""
        return any(slot is not None and slot.lost for slot in self.slots)


class Inquiry:
    """One run of :meth:`Lane.ask`: what has become of the question at each node."""

    def __init__(
        self, lane: Lane, questions: Sequence[Question | None], asked: float, patience: float, until: float
    ) -> None:
        self._lane = lane
        self._questions = questions
        self._patience, self._until = patience, until
        # when the last of them could be asked, as far as we know
        self.begun_at = asked
        self.connecting = False
        self._repeated: set[int] = set()
        self._connected: set[int] = set()  # or tried to
        lane.slots = [None if question is None else question.slot(asked, asked + patience) for question in questions]
        unheard = asked - lane.used_at > FRESH
        for line in lane.lines:
            if unheard or line.owed:
                with lane.guard:
                    line.hear()

    def advance(self) -> list[Answer]:
        """Do what can be done now."""
        self.connecting = False
        answers = [
            Answer.FAILED if question is None else self._advance(index, question)
            for index, question in enumerate(self._questions)
        ]
        if self.connecting:
            self.begun_at = monotonic()
        return answers

    def _advance(self, index: int, question: Question) -> Answer:
        slot = self._lane.slots[index]
        assert slot is not None  # noqa: S101 - there is one for each question
        line = self._lane.lines[index]
        if slot.done:
            return self._answer(index, question, slot, line)
        if slot.lost:  # the node was restarted, or hung up
            if index in self._repeated or not question.repeat:
                return Answer.FAILED
            self._repeated.add(index)
            slot = self._lane.slots[index] = self._slot(question)
        if not slot.sent:
            return self._send(index, question.command, question, slot)
        now = monotonic()
        if line.silent(now):
            self._lane.connect(line)
        return Answer.SLOW if line.slow(now) else Answer.PENDING

    def _answer(self, index: int, question: Question, slot: Slot, line: Line) -> Answer:
        reply = slot.reply
        if unknown_script(reply) and question.whole:
            slot = self._lane.slots[index] = self._slot(question)
            return self._send(index, question.whole, question, slot)
        if isinstance(reply, ReplyError):
            line.node.error = reply
            return Answer.FAILED
        if not isinstance(reply, int) or reply > 0:
            return Answer.GRANTED
        return Answer.FAILED if index in self._repeated else Answer.REFUSED

    def _send(self, index: int, command: bytes, question: Question, slot: Slot) -> Answer:
        lane, line = self._lane, self._lane.lines[index]
        slot.until = monotonic() + self._patience
        with lane.guard:
            if len(line.owed) >= MOST_OWED and not question.final:
                line.node.error = TimeoutError(f"{MOST_OWED} answers are due.")
                return Answer.FAILED
            sent = line.send(command, slot)
            slow = line.slow(monotonic())
        if slot.lost:
            return self._advance(index, question)
        if sent:
            return Answer.SLOW if slow else Answer.PENDING
        waiting = Answer.SLOW if line.node.trouble else Answer.PENDING
        if line.node.connecting(lane):
            line.node.hurry()
        else:
            if index in self._connected or not lane.connect(line):
                return Answer.FAILED
            self._connected.add(index)
        self.connecting |= waiting is Answer.PENDING
        return waiting

    def _slot(self, question: Question) -> Slot:
        now = monotonic()
        return question.slot(now, now + self._patience)

    def end(self) -> None:
        """What could not be sent and must not be forgotten, or may come before what it takes back."""
        now = monotonic()
        for index, question in enumerate(self._questions):
            slot = self._lane.slots[index]
            if question is not None and slot is not None and question.final:
                debts = self._lane.lines[index].debts
                with self._lane.guard:
                    if not slot.sent or debts.overtaken(slot):
                        debts.owe(slot, now)
