"""Redlock: one lock on N independent Redis nodes, held by the caller to which a majority has granted it.

Each node runs the scripts of the Redis engine. Waiters queue at one of them, which keeps order; a majority decides.
https://redis.io/docs/latest/develop/use/patterns/distributed-locks/. Not for correctness: see docs/backends/redlock.md.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from django_distlock.backends.base import TICK
from django_distlock.backends.holders import holder_json
from django_distlock.backends.redis.scripts import (
    ACQUIRE,
    EXTEND,
    HOLDS,
    RELEASE,
    Request,
    Script,
    keys_of,
    milliseconds,
)
from django_distlock.backends.remote import RemoteBackend
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.deadline import PATIENCE, SILENCE
from django_distlock.concurrency.flow import run
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Claim, Finding, Grant, LockInfo, drift

from . import doctor, introspection
from .attempt import PREFIX, RedlockAttempt, Votes, new_name
from .node import Node, Nodes
from .quorum import Answer, Verdict, confirm
from .round import Round

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from django.core.checks import CheckMessage

    from django_distlock.keys import LockKey

# The time of a node for its answer: this share of the TTL, at least and at most so many seconds.
SHARE_OF_TTL, LEAST_NODE_TIMEOUT = 0.05, 0.05
# A waiter asks only the lead at first for a name that was busy within this time; seconds.
BUSY = 1.0
MOST_BUSY = 4096


class RedlockBackend(RemoteBackend):
    """OPTIONS: ``nodes``, a list of URLs (``redis://``, ``rediss://``, ``unix://``) or of aliases in CACHES: an odd
    number of independent servers.

    ``node_timeout``: seconds that a node has for its answer (default: 5 % of the TTL, between 0.05 and 1).
    """

    supports_ttl = True
    option_names: ClassVar[frozenset[str]] = frozenset({"nodes", "node_timeout"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._targets = doctor.targets_of(alias, options)
        self._timeout: float | None = options.get("node_timeout")
        self.nodes = Nodes(
            Node(target, f"distlock-{alias}-{number}", lambda: self.wake_at(clock.now() + TICK))
            for number, target in enumerate(self._targets, 1)
        )
        self._busy: dict[bytes, float] = {}

    def listed_as(self, key: LockKey) -> str:
        return key.text

    # acquire and release

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        patience = self._timeout or min(max(LEAST_NODE_TIMEOUT, (claim.ttl or 0.0) * SHARE_OF_TTL), SILENCE)
        attempt, now = RedlockAttempt(self.nodes, claim, patience), clock.now()
        behind_others = now - self._busy.get(claim.key.digest, -BUSY) < BUSY
        try:
            grant = await attempt.run(now + wait, wait > 0, behind_others=behind_others)
        except (asyncio.CancelledError, GeneratorExit, BackendUnavailable):
            raise
        except BaseException:  # of a signal, which may have come between the reply and here
            leftovers.leave(partial(self._tell, attempt.votes.requests(claim)))
            raise
        if grant is None:
            self._note_busy(claim.key)
        return grant

    def _note_busy(self, key: LockKey) -> None:
        if len(self._busy) >= MOST_BUSY:
            self._busy.clear()
        self._busy[key.digest] = clock.now()

    def _tell(self, requests: Mapping[int, Request]) -> None:
        for number, request in requests.items():
            self.nodes[number].take_back([request])

    async def arelease(self, grant: Grant) -> bool:
        votes: Votes = grant.session
        votes.ended = True  # before its names are read: a renewal under way may ask for a vote
        requests = self._requests(RELEASE, grant)
        ballot = Round(self.nodes, requests, votes.late, voters=votes.voters)
        try:
            verdict = await ballot.run(confirm, PATIENCE, clock.now() + PATIENCE)
        except (asyncio.CancelledError, GeneratorExit):  # perhaps before it was sent; twice does no harm
            leftovers.leave(partial(self.release, grant))
            raise
        finally:
            last = {number: requests[number] for number in ballot.unsent()}
            leftovers.now_or_later(partial(ballot.close, last, all_nodes=True))
        if verdict is Verdict.UNAVAILABLE:
            raise ballot.error()
        return verdict is Verdict.GRANTED

    # while it is held

    async def averify(self, grant: Grant) -> bool:
        ballot = Round(self.nodes, self._requests(HOLDS, grant), grant.session.late, voters=grant.session.voters)
        try:
            verdict = await ballot.run(confirm, PATIENCE, clock.now() + PATIENCE)
        finally:
            leftovers.now_or_later(ballot.close, {})
        if verdict is Verdict.UNAVAILABLE:
            raise ballot.error()
        return verdict is Verdict.GRANTED

    async def aextend(self, grant: Grant, ttl: float) -> Grant | None:
        """A node that has forgotten its vote is asked for another one. It counts from the next renewal on: counted at
        once it would hide that another holder had a majority meanwhile."""
        asked, votes = clock.now(), grant.session
        requests = self._requests(EXTEND, grant, milliseconds(ttl), int(asked * 1e6))
        ballot = Round(self.nodes, requests, votes.late, voters=votes.voters)
        last: Mapping[int, Request] = {}
        try:
            verdict = await ballot.run(confirm, SILENCE)  # all other renewals wait for it
            if verdict is Verdict.REFUSED:
                last = votes.requests(grant.claim)
            elif verdict is Verdict.GRANTED and not votes.ended:
                last = self._votes_again(grant, ttl, ballot)
                votes.voters |= last.keys()
        finally:
            votes.late.update({number: each for number, each in ballot.open.items() if number in last})
            leftovers.now_or_later(ballot.close, last)
        if verdict is Verdict.UNAVAILABLE:
            raise ballot.error()
        if verdict is Verdict.REFUSED:
            return None
        if last and votes.ended:  # the release may not have seen the new names
            self._tell(votes.requests(grant.claim))
        return grant._replace(valid_until=asked + ttl - drift(ttl))

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        return run(self.aextend(grant, ttl))

    @staticmethod
    def _votes_again(grant: Grant, ttl: float, ballot: Round) -> dict[int, Request]:
        claim, names = grant.claim, grant.session.names
        keys, again = keys_of(claim.key.text_bytes, PREFIX), {}
        for number, answer in enumerate(ballot.answers):
            if answer is Answer.NO:
                names[number] = name = new_name(claim)
                about = claim.limit, milliseconds(ttl), holder_json(claim.key)
                again[number] = Request(ACQUIRE, keys, name, *about, b"")
        return again

    @staticmethod
    def _requests(script: Script, grant: Grant, *args: Any) -> dict[int, Request]:
        keys, until = keys_of(grant.claim.key.text_bytes, PREFIX), clock.now() + (grant.claim.ttl or 0.0)
        return {
            number: Request(script, keys, name, *args, until=until) for number, name in enumerate(grant.session.names)
        }

    # for operators

    def check(self) -> list[CheckMessage]:
        return list(doctor.check(self.alias, self.options["nodes"], self._targets))

    def diagnose(self) -> Iterable[Finding]:
        return doctor.findings(self.alias, self._targets)

    def listed(self, keys: frozenset[str] | None) -> list[LockInfo]:
        try:
            return introspection.listed(self._targets, self.alias, keys, PATIENCE)
        finally:
            self.wake_at(clock.now() + TICK)  # closes the connections of a process that only lists locks

    def break_lock(self, info: LockInfo) -> bool:
        try:
            return introspection.broken(self._targets, info, PATIENCE)
        finally:
            self.wake_at(clock.now() + TICK)

    # looking after

    def tick(self, now: float) -> float | None:
        busy = [node.tick(now) for node in self.nodes]
        return now + TICK if any(busy) else None

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self.nodes.after_fork()
