"""An attempt at a majority: every node is asked for its vote, and a vote that is of no use is taken back.

Waiters queue at the *lead*: the same node in all processes while it is up and knows the holder. When the lock is
released, the lead gives its vote to the first of them and calls it, and that one asks all nodes. The call by itself is
no grant.

What takes back a vote may arrive late. So no name is used again at a node to which a withdrawal was sent: each round
has a new one. Only at the lead a waiter keeps its name, as long as it queues there.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from django_distlock.backends.holders import holder_json
from django_distlock.backends.redis.attempt import LATER, Place
from django_distlock.backends.redis.connection import ConnectionFailed
from django_distlock.backends.redis.scripts import ACQUIRE, LEAVE, Request, holder_of, keys_of, milliseconds
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.deadline import SILENCE, pause
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Claim, Grant, drift

from .quorum import Answer, Verdict, decide, validity
from .round import Round

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.backends.redis.connection import Connection

    from .node import Nodes

PREFIX = b"redlock:{"
# The time of a waiter between two looks, because a call may be lost, or another waiter be called that does not come.
# Seconds.
LOOK_EVERY = 2.0
# With the vote of the lead and without a majority: the pause in seconds, doubled each time, and how often before
# another node becomes the lead, because this one does not know the holder.
SPLIT, MOST_SPLITS = 0.002, 5
# Too few answers are an error after SILENCE, or after this time if nodes refuse: connections may just be lost. Between
# two tries there is a pause. Seconds.
DISTURBANCE, PAUSE = 0.25, 0.02

_numbers = itertools.count(1)


def new_name(claim: Claim) -> bytes:
    """What the scripts call a holder or waiter of ``claim``; never the same again in this process."""
    return holder_of(claim, next(_numbers))


class Votes:
    """What the holder is called at each node, which nodes may have voted for it, and where the request for a vote may
    still be under way."""

    __slots__ = ("ended", "late", "names", "voters")

    def __init__(self, names: list[bytes]) -> None:
        self.names = names
        self.voters = {*range(len(names))}
        self.late: dict[int, Connection] = {}
        self.ended = False  # it is being released: a renewal must not ask for a vote again

    def requests(self, claim: Claim) -> dict[int, Request]:
        """What ends it at each node, whatever it is there."""
        keys, until = keys_of(claim.key.text_bytes, PREFIX), clock.now() + (claim.ttl or 0.0)
        return {number: Request(LEAVE, keys, name, until=until) for number, name in enumerate(self.names)}


class RedlockAttempt:
    """The requests for one claim. ``patience``: seconds that a node has for its answer."""

    def __init__(self, nodes: Nodes, claim: Claim, patience: float) -> None:
        self._nodes, self.claim, self._patience = nodes, claim, patience
        self._ttl = claim.ttl or 0.0
        self._keys = keys_of(claim.key.text_bytes, PREFIX)
        self._about = claim.limit, milliseconds(claim.ttl), holder_json(claim.key)
        self._left: set[int] = set()  # leads that failed, or do not know the holder
        self._deaf = 0  # nodes at which it could not listen
        self._choose_lead()
        self.votes = Votes([self._place.who] * len(nodes))

    def _choose_lead(self) -> None:
        first = self.claim.key.digest[0]
        order = [(first + step) % len(self._nodes) for step in range(len(self._nodes))]
        if len(self._left) == len(order):
            self._left.clear()
        others = [number for number in order if number not in self._left]
        self._lead = next((number for number in others if not self._nodes[number].down), others[0])
        self._place = Place(self._keys, new_name(self.claim), self._ttl)
        self._ahead = 0  # how many wait before it
        self._called = False  # the vote of the lead is ours
        self._splits = 0
        self._look_at = 0.0

    def _change_lead(self) -> None:
        self._place.close(True)
        self._left.add(self._lead)
        self._choose_lead()

    async def run(self, deadline: float, waits: bool, *, behind_others: bool) -> Grant | None:
        """The grant, or None: busy until the monotonic time ``deadline``. Nothing stays behind.

        ``behind_others``: the lock was busy a moment ago, so that at first only the lead is asked.
        """
        grant: Grant | None = None
        failing_since: float | None = None
        self._ahead = int(behind_others and waits)
        try:
            while True:
                try:
                    began = clock.now()
                    grant = await self._ask(deadline, waits)
                    failing_since = None
                except BackendUnavailable as error:
                    failing_since = began if failing_since is None else failing_since
                    late = isinstance(error.__cause__, TimeoutError)
                    if clock.now() >= failing_since + (SILENCE if late else DISTURBANCE):
                        raise
                    self._change_lead()
                    await pause(PAUSE)
                    continue
                if grant is None and waits:
                    self._called |= bool((await self._place.message(min(self._look_at, deadline))).fence)
                if grant is not None or not waits or clock.now() >= deadline:
                    return grant
        finally:
            leftovers.now_or_later(self._place.close, grant is None or not self._called)

    async def _ask(self, deadline: float, queue: bool) -> Grant | None:
        """Ask once: only the lead, if others wait before us."""
        lead = self._nodes[self._lead]
        channel = self._place.listen(lead) if queue else b""
        if not self._ahead or self._called:
            return await self._ask_all(channel, deadline, queue)
        asked = clock.now()
        request = Request(ACQUIRE, self._keys, self._place.who, *self._about, channel)
        try:
            reply, _ = await lead.call(request, asked + SILENCE, self._place.leave)
        except ConnectionFailed:
            self._change_lead()
            return None
        if reply[0]:
            self._called = True
            return await self._ask_all(channel, deadline, queue)
        await self._note_busy(reply, asked, queue)
        return None

    async def _ask_all(self, channel: bytes, deadline: float, queue: bool) -> Grant | None:
        lead, name = self._lead, new_name(self.claim)
        self.votes = votes = Votes([name] * len(self._nodes))
        votes.names[lead] = self._place.who
        requests = dict.fromkeys(range(len(self._nodes)), Request(ACQUIRE, self._keys, name, *self._about, b""))
        requests[lead] = Request(ACQUIRE, self._keys, self._place.who, *self._about, channel)
        ballot = Round(self._nodes, requests, lead=lead)
        back = votes.requests(self.claim)

        def judge(answers: Sequence[Answer]) -> Verdict:
            verdict = decide(answers, in_time=validity(self._ttl, clock.now() - ballot.asked_at) > 0)
            # a lead that does not know the holder keeps no order; a waiter may queue there without knowing; and who is
            # refused needs to hear until when
            queued = channel and not self._called
            heard_of = queued or (queue and verdict is Verdict.REFUSED)
            return Verdict.WAIT if heard_of and ballot.awaits(lead) else verdict

        try:
            now = clock.now()
            patience = min(self._patience, max(deadline, self.claim.answer_by, now + DISTURBANCE) - now)
            verdict = await ballot.run(judge, patience, deadline)
            if verdict is Verdict.UNAVAILABLE:
                raise ballot.error()
            if verdict is Verdict.GRANTED:
                back = self._kept(ballot, votes, channel)
                given = (Answer.YES, Answer.PENDING)
                votes.voters = {number for number, each in enumerate(ballot.answers) if each in given}
                valid_until = ballot.asked_at + self._ttl - drift(self._ttl)
                return Grant(self.claim, ballot.asked_at, None, valid_until, votes)
            for number, reply in ballot.replies.items():
                if not reply[0] or (channel and number == lead):
                    del back[number]  # it has nothing of ours; the lead: our vote, or our place in the queue
        finally:
            leftovers.now_or_later(ballot.close, back)
        await self._refused(ballot, channel, queue)
        return None

    def _kept(self, ballot: Round, votes: Votes, channel: bytes) -> dict[int, Request]:
        """What is to be taken back though the lock is ours: the place in the queue of a lead that has not voted."""
        lead = self._lead
        votes.late = ballot.unheard()
        voted = ballot.answers[lead]
        self._called = voted is Answer.YES or (voted is Answer.PENDING and (self._called or not channel))
        if self._called:
            return {}
        votes.late.pop(lead, None)
        back = {lead: votes.requests(self.claim)[lead]}
        votes.names[lead] = new_name(self.claim)
        return back

    async def _refused(self, ballot: Round, channel: bytes, queue: bool) -> None:
        reply = ballot.replies.get(self._lead)
        if reply is None:
            self._change_lead()
        elif not reply[0]:
            await self._note_busy(reply, ballot.asked_at, queue)
        elif not channel:  # its vote was taken back, so under this name no more
            self._place, self._called = Place(self._keys, new_name(self.claim), self._ttl), False
            self._pause(1)
            if queue:
                await self._open_ear()
        else:  # the others do not know of the release yet, or this one does not know the holder
            self._called = True
            self._splits += 1
            if self._splits == MOST_SPLITS:
                self._change_lead()
            self._pause(self._splits)

    def _pause(self, power: int) -> None:
        self._look_at = clock.now() + SPLIT * 2**power * random.uniform(0.5, 1)  # noqa: S311 - guards no secret

    async def _note_busy(self, reply: Sequence[int], asked: float, queue: bool) -> None:
        """The lead has another holder. A waiter queues there, if it listens."""
        _, _, taken, self._ahead, heard = reply
        self._called, self._splits = False, 0
        self._look_at = asked + min(taken / 1000 + self._ahead * LATER, LOOK_EVERY)
        if queue and not heard:
            await self._open_ear()

    async def _open_ear(self) -> None:
        try:
            self._look_at = clock.now() + await self._place.open(self._nodes[self._lead], clock.now() + SILENCE)
        except ConnectionFailed as error:
            self._deaf += 1
            self._change_lead()
            if self._deaf % len(self._nodes) == 0:
                raise BackendUnavailable(f"No Redis node lets us listen: {error}") from error
