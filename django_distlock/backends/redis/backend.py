"""Leases in Redis: each operation is one script on the server, and the script that frees a lock wakes the next waiter.

An acquire that finds the lock busy joins a queue and listens on a channel. The release hands the lock to the first
waiter that is still listening. The server knows its listeners, so waiters send no heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from django_distlock.backends.base import TICK, Backend
from django_distlock.backends.cleanup import UNDO_WINDOW, PendingCleanup
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.flow import finished, run
from django_distlock.concurrency.places import LOOK_EVERY, TURN, Place, Places
from django_distlock.exceptions import BackendUnavailable, DistlockError, UnsupportedOperation
from django_distlock.records import Claim, Finding, Grant, LockInfo, drift

from . import doctor
from .commands import (
    EXTEND,
    HOLDS,
    LEAST_PATIENCE,
    LEAVE,
    LEAVE_TIMEOUT,
    PATIENCE,
    RELEASE,
    HolderInfo,
    RedisAttempt,
    evaluate,
    holder_of,
    keys_of,
    milliseconds,
)
from .connection import ConnectionFailed, Pool
from .introspection import broken, listed
from .target import ClusterNode, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from django.core.checks import CheckMessage

    from django_distlock.keys import LockKey

    from .commands import Script

# The time that a renewal may take; all other renewals wait for it. Seconds.
RENEWAL_PATIENCE = 1.0
# Callers of one process that wait at the server, each on a connection. The others wait for a place, and ask at this
# interval whether their lock is free; seconds.
WAITERS, ASK_EVERY = 32, 0.25
# A release without a reply after this time is sent again, with more time; seconds.
RELEASE_FAST = 0.25


class RedisBackend(Backend):
    """OPTIONS: ``cache``, an alias in CACHES whose backend is django-redis (default: "default"), or ``url``."""

    supports_shared = True
    supports_ttl = True
    supports_fencing = True
    supports_break = True
    supports_semaphore = True
    waits_natively = True
    queues_waiters = True
    apart_from_databases = True
    option_names: ClassVar[frozenset[str]] = frozenset({"cache", "url"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        url = options.get("url")
        self.target = Target(url=url) if url is not None else Target(cache=options.get("cache", "default"))
        self.pool = Pool(self.target)
        self._start()

    def _start(self) -> None:
        self._places = Places(WAITERS)
        self._holder_info = HolderInfo()
        # Claims that are being acquired, and their grants until the caller surely has them: an interrupt withdraws them
        self._claims: dict[str, Grant | None] = {}
        # Claims whose release may have been executed, though its reply was lost
        self._doubtful: set[str] = set()
        # Claims of which a second request may still arrive, and when each was granted
        self._echoes: dict[str, float] = {}
        self._cleanup = PendingCleanup(self._undo_claim, f"distlock-{self.alias}-undo")

    def load(self) -> None:
        self.target.resolve()

    def listed_as(self, key: LockKey) -> str:
        return key.text

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        if self._cleanup.requests and not self._cleanup.discard(claim.token):
            return None
        deadline = clock.now() + wait
        attempt = RedisAttempt(self.pool, claim, self._holder_info.facts(claim.key), deadline)
        self._claims[claim.token] = None
        try:
            grant = await (self._queued(attempt, deadline) if wait > 0 else self._asked(attempt))
        except ConnectionFailed as error:
            self._forsake(attempt, claim, error.uncertain)
            raise self._refused(error) from (error.__cause__ or error)
        except BaseException as error:
            try:
                if attempt.sent and isinstance(error, asyncio.CancelledError):
                    with contextlib.suppress(ConnectionFailed):
                        await finished(attempt.leave(clock.now() + LEAST_PATIENCE))
            finally:  # the end of asyncio.run cancels what cleans up, too
                self._forsake(attempt, claim, True)
            raise
        if grant is None:
            self._forsake(attempt, claim, not attempt.connected)
        else:
            self._claims[claim.token] = grant
            if attempt.echo:
                self._echoes[claim.token] = grant.acquired_at
        return grant

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return run(self.atry_acquire(claim, wait))

    @staticmethod
    async def _asked(attempt: RedisAttempt) -> Grant | None:
        """Ask once, without queueing."""
        grant, _ = await attempt.ask(queue=False)
        attempt.give_back()
        return grant

    async def _queued(self, attempt: RedisAttempt, deadline: float) -> Grant | None:
        """Queue at the server until the deadline; before that, in this process for a place to do so."""
        place, seconds = Place(), TURN
        try:
            taken, grant = self._places.take(place), None
            while True:
                if not taken:
                    grant = await self._asked(attempt)
                    left = deadline - clock.now()
                    if grant is not None or left <= 0:
                        break
                    taken = await self._places.enter(place, min(left, ASK_EVERY))
                if taken:
                    grant = await self._waited(attempt, deadline, clock.now() + seconds)
                    self._places.leave(place)
                    if grant is not None or attempt.sent or clock.now() >= deadline:
                        break  # also if it could not leave the queue: then that is undone later
                    taken, seconds = False, 2 * seconds
            self._places.leave(place)
        except BaseException:
            leftovers.now_or_later(self._places.leave, place)
            raise
        return grant

    async def _waited(self, attempt: RedisAttempt, deadline: float, turn_ends: float) -> Grant | None:
        """Wait in the server's queue. None at the deadline, or when its turn is over and others want its place."""
        while True:
            grant, again_at = await attempt.ask(queue=True)
            until, look_at = min(again_at, deadline), 0.0
            while grant is None and look_at <= (now := clock.now()) < until and not self._over(turn_ends, now):
                look_at = min(until, now + LOOK_EVERY)
                grant = await attempt.hear(look_at)  # before that time: None says that it must ask again
            if grant is not None:
                return grant
            now = clock.now()
            if now >= deadline or self._over(turn_ends, now):
                with contextlib.suppress(ConnectionFailed):  # then it is undone later
                    await attempt.leave(now + LEAVE_TIMEOUT)
                return None

    def _over(self, turn_ends: float, now: float) -> bool:
        return now >= turn_ends and self._places.wanted()

    def _forsake(self, attempt: RedisAttempt, claim: Claim, uncertain: bool) -> None:
        """Schedule the clean-up of an attempt whose effect is unknown."""
        attempt.drop()
        self._claims.pop(claim.token, None)
        if attempt.sent or attempt.echo:
            self._leave_behind(claim, uncertain or attempt.echo)

    def _leave_behind(self, claim: Claim, uncertain: bool) -> None:
        self._cleanup.add(claim.token, claim, claim.ttl or 0.0, uncertain)
        self.wake_at(clock.now())

    async def _undo_claim(self, claim: Claim, until: float) -> None:
        await evaluate(self.pool, until, LEAVE, claim)

    async def awithdraw(self, claim: Claim) -> None:
        """Release a grant that an interrupt has kept from its caller. A waiter has left the queue already."""
        if claim.token not in self._claims:
            return
        del self._claims[claim.token]
        try:
            await evaluate(self.pool, clock.now() + LEAST_PATIENCE, LEAVE, claim)
        except BaseException as error:
            self._leave_behind(claim, True)
            if not isinstance(error, ConnectionFailed):
                raise

    def withdraw(self, claim: Claim) -> None:
        run(self.awithdraw(claim))

    def _release_at_once(self, grant: Grant) -> bool:
        """Release with one command on a connection at hand; False if that is not possible, or the lease had ended."""
        claim = grant.claim
        connection = None if claim.token in self._echoes else self.pool.take()
        if connection is None:
            return False
        try:
            connection.send(RELEASE.by_hash(keys_of(claim.key), holder_of(claim)))
            given = connection.receive(clock.now() + RELEASE_FAST)
        except ConnectionFailed as error:
            self.pool.discard(connection)
            if error.uncertain:
                self._doubtful.add(claim.token)
            return False
        except BaseException:
            self.pool.discard(connection)
            self._leave_behind(claim, False)
            raise
        self.pool.give(connection)
        if given == 1:  # not if the server does not know the script
            self._claims.pop(claim.token, None)
        return bool(given == 1)

    async def arelease(self, grant: Grant) -> bool:
        claim = grant.claim
        self._claims.pop(claim.token, None)
        try:
            with self._wrapped():
                given, again = await evaluate(self.pool, clock.now() + PATIENCE, RELEASE, claim)
        except BaseException:
            self._leave_behind(claim, False)  # a late release does no harm
            raise
        again = again or claim.token in self._doubtful
        self._doubtful.discard(claim.token)
        if self._echoes.pop(claim.token, None) is not None:
            self._leave_behind(claim, True)
        if not given and again:  # sent twice: the first one did it, unless the lease had ended
            return grant.valid_until is not None and clock.now() < grant.valid_until
        return bool(given)

    def release(self, grant: Grant) -> bool:
        return self._release_at_once(grant) or run(self.arelease(grant))

    async def averify(self, grant: Grant) -> bool:
        return bool(await self._tried(PATIENCE, HOLDS, grant.claim))

    def verify(self, grant: Grant) -> bool:
        return run(self.averify(grant))

    async def aextend(self, grant: Grant, ttl: float) -> Grant | None:
        asked = clock.now()
        if not await self._tried(RENEWAL_PATIENCE, EXTEND, grant.claim, milliseconds(ttl), int(asked * 1e6)):
            return None
        return grant._replace(valid_until=asked + ttl - drift(ttl))

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        return run(self.aextend(grant, ttl))

    async def _tried(self, patience: float, script: Script, claim: Claim, *args: Any) -> Any:
        with self._wrapped():
            reply, _ = await evaluate(self.pool, clock.now() + patience, script, claim, *args)
        return reply

    def check(self) -> list[CheckMessage]:
        return doctor.check(self.alias, self.options, self.target)

    def diagnose(self) -> Iterable[Finding]:
        return doctor.findings(self.target)

    def inspect(self) -> Iterable[LockInfo]:
        return self._listed(None)

    def held_among(self, keys: Iterable[LockKey]) -> set[LockKey]:
        listed = {self.listed_as(key): key for key in keys}
        return {listed[info.key] for info in self._listed(frozenset(listed))}

    def _listed(self, keys: frozenset[str] | None) -> list[LockInfo]:
        with self._wrapped():
            return run(listed(self.pool, self.alias, PATIENCE, keys))

    def break_lock(self, info: LockInfo) -> bool:
        with self._wrapped():
            return run(broken(self.pool, info, clock.now() + PATIENCE))

    @contextlib.contextmanager
    def _wrapped(self) -> Iterator[None]:
        try:
            yield
        except ConnectionFailed as error:
            raise self._unavailable(error) from (error.__cause__ or error)
        finally:
            self.wake_at(clock.now() + TICK)  # closes the connection of a process that only lists locks

    def _refused(self, error: ConnectionFailed) -> DistlockError:
        """What an acquire raises."""
        if isinstance(error.__cause__, ClusterNode):
            return UnsupportedOperation(f"The Redis server of alias {self.alias!r}: {error.__cause__}")
        return self._unavailable(error)

    def _unavailable(self, error: ConnectionFailed) -> BackendUnavailable:
        return BackendUnavailable(f"The Redis server of alias {self.alias!r}: {error}")

    def tick(self, now: float) -> float | None:
        cleaned = self._cleanup.tick(now)
        self.pool.close_idle(now)
        for token, grant in list(self._claims.items()):
            if grant is not None and now - grant.acquired_at > TICK:
                self._claims.pop(token, None)
        for token, granted_at in list(self._echoes.items()):
            if now - granted_at > UNDO_WINDOW:
                self._echoes.pop(token, None)
        again = now + TICK if self.pool.is_open or self._claims else None
        return min((due for due in (cleaned, again) if due is not None), default=None)

    def close(self) -> None:
        self._cleanup.close()
        self.pool.close()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self.pool.abandon()
        self._start()
