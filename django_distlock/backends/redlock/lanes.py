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
from typing import TYPE_CHECKING

from django_distlock.backends.redis.pool import FRESH, Link
from django_distlock.concurrency import finalizers, sockets
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.parking import FairLock

from .inquiry import Inquiry, Judge, Outcome, Question
from .lines import Line
from .nodes import HELD_UP
from .quorum import Answer, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .nodes import Node, Slot

# So long is a node waited for that is being connected to, though the others have decided; seconds.
FIRST_TIME = 0.05
# A lane without a question is closed after this time, one on which anything is still owed after the other; seconds.
IDLE, IDLE_OWING = 5.0, 60.0


class Lane:
    """Whoever asks has ``turn``, until :meth:`leave`; what is only told may be told by anybody at any time."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.turn = FairLock()
        self.used_at = monotonic()
        self.guard = threading.Lock()
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._ear.fileno(), select.POLLIN)
        self._by_fd: dict[int, Line] = {}
        self.lines = [Line(node, self._poll, self._by_fd, self._bury) for node in nodes]
        # does an event loop watch the connections? Then those that have ended are closed when it does so no more
        self._watched = False
        self._ended: list[Link] = []
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
                if self.closed:
                    return Outcome(Verdict.UNAVAILABLE, [Answer.FAILED] * len(self.lines), self.slots)
                answers = inquiry.advance()
                now = monotonic()
                end = min(until, inquiry.begun_at + patience)
                verdict, over = judge(answers, now - asked, end - asked, self.slots), now >= end
                if verdict is not Verdict.WAIT:
                    decided_at = min(decided_at, now)
                    # who has never been asked yet is given a moment: a vote more is worth it
                    end = decided_at + (max(settle, FIRST_TIME) if inquiry.connecting else settle)
                    if now >= end or Answer.PENDING not in answers:
                        return Outcome(verdict, answers, self.slots, over)
                    listen_until = end
                else:
                    listen_until = min(until, now + HELD_UP) if inquiry.connecting else end
                yield Step(self.listen, self.alisten, (listen_until,))
        finally:
            inquiry.end()

    def tell(self, index: int, question: Question) -> None:
        """Have a node do ``question.undo`` without waiting for its answer; if it cannot be reached, later."""
        now = monotonic()
        with self.guard:
            self.lines[index].tell(question.undo, question.slot(now, now + FRESH), now)

    def ask_aside(self, index: int, question: Question) -> Slot | None:
        """Put a question to one node without waiting for the answer. None if that could not be done."""
        now = monotonic()
        slot = question.slot(now, now + FRESH)
        with self.guard:
            return slot if self.lines[index].send(question.whole, slot) else None

    def connect(self, line: Line) -> bool:
        """Open a connection in another thread. False if that is of no use at present."""
        return line.node.connect(self, lambda link: self._attach(line, link), self._mouth)

    def _attach(self, line: Line, link: Link) -> None:
        with self.guard:
            if self.closed:
                link.close()
            else:
                line.attach(link)

    # as a target of Call: wait until there is something to hear, and hear it

    def listen(self, until: float) -> None:
        left = until - monotonic()
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
        with self.guard:
            self._watched = True
            fds = [self._ear.fileno(), *self._by_fd]
        timer = loop.call_later(max(0.0, until - monotonic()), _settle, future)
        try:
            for fd in fds:
                loop.add_reader(fd, _settle, future)
            await future
        finally:
            timer.cancel()
            try:
                for fd in fds:
                    loop.remove_reader(fd)
            finally:
                finalizers.now_or_later(self._watched_no_more)
        self._hear_connector()
        with self.guard:
            for line in self.lines:
                line.hear()

    def _bury(self, link: Link) -> None:
        """A connection has ended. The number of a descriptor that is closed is soon somebody else's, and the event loop
        would take that one for ours. The caller has the mutex."""
        if self._watched:
            sockets.shut(link.fd)
            self._ended.append(link)
        else:
            link.close()

    def _watched_no_more(self) -> None:
        with self.guard:
            self._watched = False
            while self._ended:
                self._ended.pop().close()

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

    def leave(self) -> None:
        """Give up the turn. Who has had it closes what may not be closed under those that ask."""
        self.turn.release()
        if self.closed:
            self._hush()

    def close(self) -> None:
        """Close every connection. What is owed is forgotten. Whoever has the turn is told so, in the middle of its
        question."""
        with self.guard:
            self.closed = True
            for line in self.lines:
                line.drop()
        with contextlib.suppress(OSError):
            self._mouth.send(b"x")
        self._hush()

    def _hush(self) -> None:
        """Close both ends, unless somebody has the turn, who does it after that."""
        if self.turn.try_acquire():
            self._shut()
            self.turn.release()  # to those who wait for it, to see that there is nothing to wait for

    def _shut(self) -> None:
        self._ear.close()
        self._mouth.close()

    def abandon(self) -> None:
        """In the child of a fork: the connections are the parent's, who must not notice."""
        for line in self.lines:
            line.abandon()
        for link in self._ended:
            link.close()
        self._shut()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
