"""One attempt at a majority: every node is asked for its vote, and a vote that is of no use is taken back."""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from django_distlock.backends.redis.scripts import milliseconds
from django_distlock.concurrency import clock, leftovers
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Grant, drift

from .nodes import ACQUIRE, JOIN, PLACES, RESPECT, NodeRequest, Undo, keys_of, undo_request, vote_request
from .rounds import NodeAnswer, RedlockBackendUnavailable, Round, Verdict, decide, majority

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.records import Claim

    from .nodes import Nodes, Pipeline, Sent
    from .rounds import Judge

# The least time for an attempt of a caller that does not wait, and the most for any; seconds.
LEAST_PATIENCE, LONGEST = 0.5, 5.0
# A waiter hears the node that keeps its queue, if it answers within this time: then it has left the queue. Seconds.
LEAD = 0.005

# Votes are numbered in each process: what takes back one of them never removes a later one.
numbers = itertools.count()


class RedlockSession(NamedTuple):
    """What a grant is known by. ``votes`` has the last request to each node for its vote, None if there was none.

    A vote whose request was lost does not count: it is taken back, and asked for again after that. ``ended`` is empty
    until the release begins.
    """

    vote: str
    holder: str
    votes: list[Sent | None]
    ended: list[bool]

    def __repr__(self) -> str:
        return "<Session>"  # the vote contains the token


class RedlockAttempt:
    """The attempts at one claim. ``told``: what the holder tells of itself; ``patience``: the time of a node for its
    reply, in seconds."""

    def __init__(self, nodes: Nodes, claim: Claim, told: bytes, patience: float) -> None:
        self.nodes = nodes
        self.claim = claim
        self.keys = keys_of(claim.key.text)
        self.ttl = claim.ttl or 0.0
        self.patience = patience
        self._told = told[1:].decode()
        # the request of the last vote to the node that keeps the queue; it may have no reply yet
        self.at_lead: Sent | None = None
        # an attempt that has not ended: its round, and the vote
        self._round: Round | None = None
        self._vote = ""

    def until(self, wait: float) -> float:
        """The monotonic time at which an attempt ends that begins now."""
        now = clock.now()
        return min(self.claim.answer_by or now + max(wait, LEAST_PATIENCE), now + LONGEST)

    async def once(self, until: float) -> Grant | None:
        """Ask all nodes; and again if connections turn out to be lost, as after a restart."""
        lead = self.lead()
        try:
            return await self.vote(lead, until)
        except RedlockBackendUnavailable as error:
            if not error.lost:
                raise
        return await self.vote(lead, until)

    def lead(self, shift: int = 0) -> int:
        """The node that keeps the queue: the same one in all processes while it is healthy and knows the holder."""
        healthy = self.nodes.healthy(self.claim.key.digest[0] % len(self.nodes.all))
        return healthy[shift % len(healthy)]

    async def vote(
        self,
        lead: int,
        until: float,
        mode: str = RESPECT,
        *,
        everyone: bool = True,
        own: Pipeline | None = None,
        member: str = "",
        since: str = "",
    ) -> Grant | None:
        """Ask the nodes for their votes: all at once, or first the node ``lead`` alone and the others if it grants.

        ``own``: the connection to ``lead``, for a caller that waits in its queue. BackendUnavailable if too few nodes
        answer.
        """
        vote = self._vote = f"{self.claim.token}-{next(numbers)} "
        holder = f'{{"since":{time.time_ns() // 1000},{self._told}'
        undo = Undo(self.keys, vote, "", self.ttl)
        args = (vote, milliseconds(self.ttl), vote + holder, mode, member, since, _channel(own))
        first = NodeRequest(ACQUIRE, self.keys, *args, undo=undo)
        requests: list[NodeRequest | None] = [None] * len(self.nodes.all)
        requests[lead] = first
        ballot = self._round = Round(self.nodes, requests, own)
        verdict = Verdict.GRANTED
        try:
            if not everyone:
                verdict = await ballot.ask(_by_lead(lead), self.patience, until)
            if verdict is Verdict.GRANTED:
                others = vote_request(undo, holder)
                ballot.requests = [first if index == lead else others for index in range(len(requests))]
                judge, least = _by_majority(ballot, lead, self.ttl), majority(len(requests))
                verdict = await ballot.ask(judge, self.patience, until, least=least)
                if mode == JOIN and verdict is Verdict.GRANTED:
                    await ballot.settle(min(until, clock.now() + LEAD), lead)
            if verdict is Verdict.UNAVAILABLE:
                raise ballot.error()
            grant = self._grant(ballot, vote, holder) if verdict is Verdict.GRANTED else None
        except BackendUnavailable:
            leftovers.now_or_later(partial(self.end, known=True))
            raise
        except BaseException:
            leftovers.now_or_later(self.end)
            raise
        if grant is None:
            self.end(known=True)
        else:
            ballot.close()
        self.at_lead = ballot.sent[lead]
        return grant

    def _grant(self, ballot: Round, vote: str, holder: str) -> Grant:
        asked = ballot.asked_at
        valid_until = asked + self.ttl - drift(self.ttl)
        return Grant(
            claim=self.claim,
            acquired_at=asked,
            valid_until=valid_until,
            session=RedlockSession(vote, holder, ballot.sent, []),
        )

    def keep(self) -> None:
        """The grant has an owner: it is not taken back any more."""
        self._round, self._vote = None, ""

    def end(self, known: bool = False) -> None:
        """Take back the votes of an attempt, unless the grant was kept, and give its connections back. May be repeated.

        ``known``: the attempt came to its end, and what it sent and heard is known: nothing is taken back from a node
        that was not asked. Else an interrupt may have come anywhere.
        """
        ballot, vote = self._round, self._vote
        if ballot is None:
            return
        request = undo_request(Undo(self.keys, vote, "", self.ttl))
        for index, sent in enumerate(ballot.sent):
            if ballot.requests[index] is None:
                continue
            if not known or (sent is not None and not sent.lost and ballot.answers[index] is not NodeAnswer.REFUSED):
                ballot.tell(index, request)
        ballot.close()
        self._round = None


def _channel(own: Pipeline | None) -> bytes:
    """The channel on which the node can call the caller, empty if there is none."""
    return own.link.channel if own is not None and own.link is not None and own.link.subscribed else b""


def _by_majority(ballot: Round, lead: int, ttl: float) -> Judge:
    def judge(answers: Sequence[NodeAnswer], elapsed: float, patience: float) -> Verdict:
        sent = ballot.sent[lead]
        if sent is not None and isinstance(sent.reply, int) and -PLACES <= sent.reply < 0:
            return Verdict.REFUSED  # the lock is free, but others came first
        return decide(answers, elapsed=elapsed, ttl=ttl, patience=patience)

    return judge


_OF_LEAD = {NodeAnswer.GRANTED: Verdict.GRANTED, NodeAnswer.REFUSED: Verdict.REFUSED}


def _by_lead(lead: int) -> Judge:
    def judge(answers: Sequence[NodeAnswer], elapsed: float, patience: float) -> Verdict:
        if answers[lead] is NodeAnswer.PENDING and elapsed < patience:
            return Verdict.WAIT
        return _OF_LEAD.get(answers[lead], Verdict.UNAVAILABLE)

    return judge
