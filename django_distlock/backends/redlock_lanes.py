"""A lane: one connection to each node, on which one question at a time is put to all of them.

All that concerns one name goes down one lane, in order. So a node that hangs, and executes everything when it wakes,
executes a late grant and then what takes it back; nobody has to wait to see it happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from django_distlock.parking import Turnstile
from django_distlock.waiting import Call, Flow

from .redis_connection import FRESH, Link
from .redis_protocol import ReplyError, unknown_script
from .redlock_lines import MOST_OWED, Line
from .redlock_nodes import Slot
from .redlock_quorum import Answer, Verdict

if TYPE_CHECKING:
    from .redlock_nodes import Node

# A lane without a question is closed after this time, one on which anything is still owed after the other; seconds.
IDLE, IDLE_OWING = 5.0, 60.0

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
    verdict: Verdict
    answers: list[Answer]
    slots: list[Slot | None]

    @property
    def lost(self) -> bool:
        """Was a connection lost, so that asking again may do better?"""
        return any(slot is not None and slot.lost for slot in self.slots)


class Lane:
    """Whoever asks has ``turn``; what is only told may be told by anybody at any time."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.turn = Turnstile()
        self.used_at = time.monotonic()
        self.guard = threading.Lock()
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._ear.fileno(), select.POLLIN)
        self._by_fd: dict[int, Line] = {}
        self.lines = [Line(node, self._poll, self._by_fd) for node in nodes]
        # of the question that is asked now, or was last
        self.slots: list[Slot | None] = []
        self.closed = False

    def ask(
        self,
        questions: Sequence[Question | None],
        judge: Judge,
        *,
        asked: float,
        patience: float,
        until: float,
        settle: float = 0.0,
    ) -> Flow[Outcome]:
        """Put ``questions`` to the nodes, side by side, until ``judge`` has a verdict of their answers.

        Each has ``patience`` seconds for its answer, and before that the time to connect; all of it ends at ``until``.
        ``settle``: having a verdict, listen on for so long to those who will soon have answered too.
        """
        inquiry = Inquiry(self, questions, asked, patience, until)
        self.used_at = asked
        decided_at = math.inf
        try:
            while True:
                answers = inquiry.advance()
                now = time.monotonic()
                end = min(until, inquiry.begun_at + patience)
                verdict = judge(answers, now - asked, end - asked, self.slots)
                if verdict is not Verdict.WAIT:
                    decided_at = min(decided_at, now)
                    end = decided_at + settle
                    if now >= end or Answer.PENDING not in answers:
                        return Outcome(verdict, answers, self.slots)
                    listen_until = end
                else:
                    listen_until = until if inquiry.connecting else end
                yield Call(self, "listen", (listen_until,))
        finally:
            inquiry.end()

    def tell(self, index: int, question: Question) -> None:
        """Have a node do ``question.undo`` without waiting for its answer; if it cannot be reached, later."""
        now = time.monotonic()
        with self.guard:
            self.lines[index].tell(question.undo, question.slot(now, now + FRESH), now)

    def connect(self, line: Line) -> bool:
        """Open a connection in a thread aside. False if that is of no use at present."""
        return line.node.connect(self, lambda link: self._attach(line, link), self._mouth)

    def _attach(self, line: Line, link: Link) -> None:
        with self.guard:
            if self.closed:
                link.close()
            else:
                line.attach(link)

    # as a target of Call: wait until there is something to hear, and hear it

    def listen(self, until: float) -> None:
        left = until - time.monotonic()
        for fd, _ in self._poll.poll(math.ceil(left * 1000) if left > 0 else 0):
            line = self._by_fd.get(fd)
            if line is None:
                self._hear_connector()
            else:
                with self.guard:
                    line.hear()

    async def alisten(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        fds = [self._ear.fileno(), *self._by_fd]
        for fd in fds:
            loop.add_reader(fd, _settle, future)
        timer = loop.call_later(max(0.0, until - time.monotonic()), _settle, future)
        try:
            await future
        finally:
            timer.cancel()
            for fd in fds:
                loop.remove_reader(fd)
        self._hear_connector()
        with self.guard:
            for line in self.lines:
                line.hear()

    def _hear_connector(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(64)

    # looking after it

    def tend(self, now: float) -> None:
        """Hear what came late, pay debts, try anew aside what is silent. The caller has the turn."""
        for line in self.lines:
            with self.guard:
                wanted = line.tend(now)
            if wanted:
                self.connect(line)

    def idle(self, now: float) -> bool:
        """May it be closed?"""
        owing = any(line.owed or line.debts for line in self.lines)
        return now - self.used_at > (IDLE_OWING if owing else IDLE)

    def close(self) -> None:
        """Close every connection. What is owed is forgotten."""
        with self.guard:
            self.closed = True
            for line in self.lines:
                line.drop()
        self._ear.close()
        self._mouth.close()

    def abandon(self) -> None:
        """In the child of a fork: the connections are the parent's, who must not notice."""
        for line in self.lines:
            line.abandon()
        self._ear.close()
        self._mouth.close()


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
            self.begun_at = time.monotonic()
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
        now = time.monotonic()
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
        if question.vote in line.debts:  # a vote that is being taken back does not count
            return Answer.FAILED
        if not isinstance(reply, int) or reply > 0:
            return Answer.GRANTED
        return Answer.FAILED if index in self._repeated else Answer.REFUSED

    def _send(self, index: int, command: bytes, question: Question, slot: Slot) -> Answer:
        lane, line = self._lane, self._lane.lines[index]
        slot.until = time.monotonic() + self._patience
        with lane.guard:
            if len(line.owed) >= MOST_OWED and not question.final:
                return Answer.FAILED
            sent = line.send(command, slot)
            slow = line.slow(time.monotonic())
        if slot.lost:
            return self._advance(index, question)
        if sent:
            return Answer.SLOW if slow else Answer.PENDING
        waiting = Answer.SLOW if line.node.trouble else Answer.PENDING
        if not line.node.connecting(lane):
            if index in self._connected or not lane.connect(line):
                return Answer.FAILED
            self._connected.add(index)
        self.connecting |= waiting is Answer.PENDING
        return waiting

    def _slot(self, question: Question) -> Slot:
        now = time.monotonic()
        return question.slot(now, now + self._patience)

    def end(self) -> None:
        """What could not be sent and must not be forgotten."""
        now = time.monotonic()
        for index, question in enumerate(self._questions):
            slot = self._lane.slots[index]
            if question is not None and slot is not None and question.final and not slot.sent:
                with self._lane.guard:
                    self._lane.lines[index].debts.owe(slot, now)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
