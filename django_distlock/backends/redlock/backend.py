"""Redlock: one lock on N independent Redis nodes, held by the caller to which a majority has granted it.

https://redis.io/docs/latest/develop/use/patterns/distributed-locks/. Not for correctness: see docs/backends/redlock.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django_distlock.backends.base import Backend
from django_distlock.backends.cleanup import PendingCleanup
from django_distlock.backends.holders import holder_json
from django_distlock.backends.redis.scripts import milliseconds
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.places import Places
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Claim, Finding, Grant, LockInfo, drift

from . import doctor
from .acquire import RedlockAttempt, RedlockSession
from .connection import PENDING
from .introspection import break_everywhere, listing
from .nodes import EXTEND, RELEASE, NodeRequest, Nodes, Undo, keys_of, undo_request, vote_request
from .rounds import NodeAnswer, Round, Verdict, ask_all, confirm
from .waiter import RedlockWaiter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from django.core.checks import CheckMessage

    from django_distlock.keys import LockKey

    from .nodes import Sent

# The time of a node for its reply: this share of the TTL, and at least this many seconds.
SHARE_OF_TTL, LEAST_NODE_TIMEOUT = 0.05, 0.05
# The time for a release or an operator's request; and for a renewal, for which all others wait. Seconds.
PATIENCE, RENEWAL_PATIENCE = 2.0, 1.0
# A release or renewal listens this much longer to the nodes that were not needed, so that the next caller does not find
# the key there, and the holder learns which nodes have lost it. Seconds.
SETTLE = 0.005
# A name that was busy within this time is asked for at one node first; seconds.
BUSY = 1.0
CACHED_NAMES = 4096
# Callers of one process that wait at the nodes, each on a connection; the others look now and then.
WAITERS = 32
TICK = 0.5


class RedlockBackend(Backend):
    """OPTIONS: ``nodes``, a list of URLs (``redis://``, ``rediss://``, ``unix://``) or of aliases of django-redis in
    CACHES: an odd number of independent servers.

    ``node_timeout``: seconds that a node has for its reply (default: 5 % of the TTL, at least 0.05).
    """

    supports_ttl = True
    supports_break = True
    queues_waiters = True
    option_names: ClassVar[frozenset[str]] = frozenset({"nodes", "node_timeout"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self._targets = doctor.targets_of(alias, options)
        self._timeout: float | None = options.get("node_timeout")
        self._start()

    def _start(self) -> None:
        self._cleanup: PendingCleanup[tuple[int, Undo]] = PendingCleanup(self._undo_at, f"distlock-{self.alias}-undo")
        self._nodes = Nodes(self.alias, self._targets, self._cleanup, lambda when: self.wake_at(when))
        self._waiters = Places(WAITERS)
        # attempts under way, and grants until their callers surely have them
        self._claims: dict[str, Grant | tuple[RedlockAttempt | RedlockWaiter, ...]] = {}
        self._busy: dict[bytes, float] = {}

    def _patience(self, ttl: float) -> float:
        return self._timeout or max(LEAST_NODE_TIMEOUT, ttl * SHARE_OF_TTL)

    def listed_as(self, key: LockKey) -> str:
        return key.text

    # acquire

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        now = clock.now()
        attempt = RedlockAttempt(self._nodes, claim, holder_json(claim.key), self._patience(claim.ttl or 0.0))
        self._claims[claim.token] = (attempt,)
        try:
            grant: Grant | None = None
            failed: BackendUnavailable | None = None
            if wait <= 0 or now - self._busy.get(claim.key.digest, -BUSY) >= BUSY:
                try:
                    grant = await attempt.once(attempt.until(wait))
                except BackendUnavailable as error:
                    if clock.now() >= now + wait:
                        raise
                    failed = error
            if grant is None and wait > 0:
                waiter = RedlockWaiter(attempt, self._waiters, now + wait)
                self._claims[claim.token] = (waiter, attempt)
                grant = await waiter.wait(failed)
        except (Exception, GeneratorExit):  # also one of a task queue, which may come anywhere
            leftovers.now_or_later(self.withdraw, claim)
            raise
        if grant is None:
            self._note_busy(claim.key)
            self._claims.pop(claim.token, None)
            self.wake_at(clock.now() + TICK)  # for the connections; a grant is looked after for its renewal
        else:
            self._claims[claim.token] = grant
            attempt.keep()
        return grant

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return run(self.atry_acquire(claim, wait))

    def _note_busy(self, key: LockKey) -> None:
        if len(self._busy) >= CACHED_NAMES:
            self._busy.clear()
        self._busy[key.digest] = clock.now()

    def withdraw(self, claim: Claim) -> None:
        left = self._claims.get(claim.token)
        if isinstance(left, Grant):  # which its caller never got, because it was interrupted
            self._take_back(left)
        else:
            for each in left or ():
                each.end()
        self._claims.pop(claim.token, None)  # last, because an interrupted withdrawal is repeated

    async def awithdraw(self, claim: Claim) -> None:
        self.withdraw(claim)

    def _take_back(self, grant: Grant) -> None:
        """Give back in the background what a caller cannot give back."""
        for index, vote in enumerate(grant.session.votes):
            if vote is not None:
                self._nodes.undo_later(index, _undo_of(grant), uncertain=vote.reply is PENDING)

    # while it is held

    async def arelease(self, grant: Grant) -> bool:
        self._claims.pop(grant.claim.token, None)
        grant.session.ended.append(True)  # before the votes are read: a renewal under way may add one
        votes, undo = grant.session.votes, _undo_of(grant)
        request = undo_request(undo)
        try:
            ballot = self._round(grant, [None if vote is None else request for vote in votes])
            verdict = await self._confirmed(ballot, grant, grant.claim.ttl or 0.0, PATIENCE)
        except BaseException:
            self._take_back(grant)
            raise
        for index, (vote, sent) in enumerate(zip(votes, ballot.sent, strict=True)):
            first = ballot.may_be_first(index)
            if vote is not None and (sent is None or first):
                self._nodes.undo_later(index, undo, uncertain=first)
        if verdict is Verdict.UNAVAILABLE:
            in_time = grant.valid_until is not None and clock.now() < grant.valid_until
            if in_time and ballot.repeated_in_vain():
                return True  # sent twice: the first one did it, unless the lease had ended
            raise ballot.error()
        return verdict is Verdict.GRANTED

    def release(self, grant: Grant) -> bool:
        return run(self.arelease(grant))

    async def aextend(self, grant: Grant, ttl: float) -> Grant | None:
        asked = clock.now()
        requests = [self._extension(grant, ttl)] * len(self._targets)
        ballot = self._round(grant, requests)
        verdict = await self._confirmed(ballot, grant, ttl, RENEWAL_PATIENCE)
        if verdict is Verdict.GRANTED and NodeAnswer.REFUSED in ballot.answers:
            # Nodes have forgotten it, or an operator breaks the lock at this moment: a second look tells
            ballot = self._round(grant, requests)
            verdict = await self._confirmed(ballot, grant, ttl, RENEWAL_PATIENCE, revote=True)
        if verdict is Verdict.UNAVAILABLE:
            raise ballot.error()
        if verdict is Verdict.REFUSED:
            self._take_back(grant)
            return None
        self._count(ballot, grant)
        return grant._replace(acquired_at=asked, valid_until=asked + ttl - drift(ttl))

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        return run(self.aextend(grant, ttl))

    async def averify(self, grant: Grant) -> bool:
        request = self._extension(grant, None)
        ballot = self._round(grant, [None if vote is None else request for vote in grant.session.votes])
        verdict = await self._confirmed(ballot, grant, grant.claim.ttl or 0.0, PATIENCE)
        if verdict is Verdict.UNAVAILABLE:
            raise ballot.error()
        return verdict is Verdict.GRANTED

    def verify(self, grant: Grant) -> bool:
        return run(self.averify(grant))

    @staticmethod
    def _extension(grant: Grant, ttl: float | None) -> NodeRequest:
        """A request to live for ``ttl`` seconds more. Without: only whether the vote is there."""
        keys = keys_of(grant.claim.key.text)
        return NodeRequest(EXTEND, keys, grant.session.vote, "" if ttl is None else milliseconds(ttl), repeat=True)

    def _round(self, grant: Grant, requests: Sequence[NodeRequest | None]) -> Round:
        """On the connections on which a request for a vote has no reply yet, so that the new one comes after it."""
        votes = grant.session.votes
        waited_for = [vote.pipeline if vote is not None and vote.reply is PENDING else None for vote in votes]
        return Round(self._nodes, requests, prefer=waited_for)

    async def _confirmed(
        self, ballot: Round, grant: Grant, ttl: float, longest: float, *, revote: bool = False
    ) -> Verdict:
        """Do the nodes still know ``grant``? ``revote``: those that do not are asked for their vote again.

        That vote counts from the next renewal on: counted at once it would hide that another holder had a majority
        meanwhile. It is not asked for while an older one is being taken back.
        """
        session: RedlockSession = grant.session

        def judge(answers: Sequence[NodeAnswer], elapsed: float, patience: float) -> Verdict:
            pairs = zip(session.votes, answers, strict=True)
            counted = [NodeAnswer.FAILED if _in_doubt(session, vote) else answer for vote, answer in pairs]
            return confirm(counted, elapsed=elapsed, patience=patience)

        try:
            patience, until = self._patience(ttl), clock.now() + longest
            verdict = await ballot.ask(judge, patience, until, settle=SETTLE)
            if verdict is Verdict.UNAVAILABLE and not ballot.complete:
                verdict = await ballot.ask(judge, patience, until, rest=True)
            if revote and verdict is Verdict.GRANTED:
                self._vote_again(ballot, grant, ttl)
            ballot.close()
        except BaseException:
            leftovers.now_or_later(ballot.close)
            raise
        return verdict

    def _vote_again(self, ballot: Round, grant: Grant, ttl: float) -> None:
        session: RedlockSession = grant.session
        again = vote_request(Undo(keys_of(grant.claim.key.text), session.vote, "", ttl), session.holder)
        for index, answer in enumerate(ballot.answers):
            if answer is NodeAnswer.REFUSED and not self._undone_now(index, grant):
                session.votes[index] = ballot.tell(index, again) or session.votes[index]
                if session.ended:  # and the release may not have seen this vote
                    self._nodes.undo_later(index, _undo_of(grant))

    def _count(self, ballot: Round, grant: Grant) -> None:
        """A vote that a node confirms counts from now on, also if the first request for it was lost."""
        for index, answer in enumerate(ballot.answers):
            if answer is NodeAnswer.GRANTED and not self._undone_now(index, grant):
                grant.session.votes[index] = ballot.sent[index]

    def _undone_now(self, index: int, grant: Grant) -> bool:
        """Is the vote of this node being taken back, because the request for it was lost, or may it be soon?"""
        session: RedlockSession = grant.session
        vote = session.votes[index]
        if vote is None or not _in_doubt(session, vote):
            return False
        return not vote.lost or self._nodes.undoing(index, session.vote)

    async def _undo_at(self, what: tuple[int, Undo], until: float) -> None:
        """For the clean-up: undo what may be left at one node."""
        index, undo = what
        request = NodeRequest(RELEASE, undo.keys, undo.vote, undo.member)
        ballot = await ask_all(self._nodes, {index: request}, until)
        if ballot.answers[index] not in (NodeAnswer.GRANTED, NodeAnswer.REFUSED):
            raise ballot.error()

    # what an operator sees and does

    def diagnose(self) -> Iterable[Finding]:
        return doctor.findings(self.alias, self._targets)

    def inspect(self) -> Iterable[LockInfo]:
        return run(listing(self.alias, self._nodes, PATIENCE))

    def break_lock(self, info: LockInfo) -> bool:
        return run(break_everywhere(self._nodes, info, PATIENCE))

    def check(self) -> list[CheckMessage]:
        return list(doctor.check(self.alias, self.options["nodes"], self._targets))

    # looking after

    def tick(self, now: float) -> float | None:
        due = self._cleanup.tick(now)
        open_ = self._nodes.tick(now)
        for token, grant in list(self._claims.items()):
            if isinstance(grant, Grant) and now - grant.acquired_at > TICK:
                self._claims.pop(token, None)
        if not open_ and not self._claims:
            return due
        return now + TICK if due is None else min(due, now + TICK)

    def close(self) -> None:
        self._cleanup.close()
        self._nodes.close()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self._nodes.abandon()
        self._start()


def _in_doubt(session: RedlockSession, vote: Sent | None) -> bool:
    """May the request for this vote be lost, and with that the vote taken back? Its own reply says that it is not, and
    comes before any later one of the same connection."""
    return vote is not None and (vote.lost or (vote.reply is PENDING and not session.ended))


def _undo_of(grant: Grant) -> Undo:
    ttl = max((grant.valid_until or 0.0) - grant.acquired_at, grant.claim.ttl or 0.0)
    return Undo(keys_of(grant.claim.key.text), grant.session.vote, "", ttl)
