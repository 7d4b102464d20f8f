"""Leases in Redis: each operation is one script on the server, and the script that frees a lock wakes the next waiter.

An acquire that finds the lock busy joins a queue and listens. The release hands the lock to the first waiter whose
process still listens. The server knows its listeners, so waiters send no heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from django_distlock.backends.base import TICK
from django_distlock.backends.remote import RemoteBackend
from django_distlock.concurrency import clock, leftovers
from django_distlock.concurrency.deadline import PATIENCE, SILENCE
from django_distlock.concurrency.flow import run
from django_distlock.exceptions import BackendUnavailable
from django_distlock.records import Claim, Finding, Grant, LockInfo, drift

from . import doctor, introspection
from .attempt import Attempt
from .connection import ConnectionFailed
from .scripts import EXTEND, HOLDS, RELEASE, Request, Script, holder_of, keys_of, milliseconds
from .servers import Servers
from .target import Target

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterable, Mapping

    from django.core.checks import CheckMessage

    from django_distlock.keys import LockKey


T = TypeVar("T")


class RedisBackend(RemoteBackend):
    """OPTIONS: ``cache``, an alias in CACHES whose backend is django-redis or Django's (default: "default"), or
    ``url``."""

    supports_shared = True
    supports_ttl = True
    supports_fencing = True
    supports_semaphore = True
    option_names: ClassVar[frozenset[str]] = frozenset({"cache", "url"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self.target = Target.of(options)
        with contextlib.suppress(Exception):  # said by the first who connects, and by the checks
            self.target.resolve()  # imports the driver, for which no caller has the time
        self.servers = Servers(self.target, f"distlock-{alias}", lambda: self.wake_at(clock.now() + TICK))

    def listed_as(self, key: LockKey) -> str:
        return key.text

    # acquire and release

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        attempt = Attempt(self.servers, claim)
        try:
            return await self._told(attempt.run(clock.now() + wait, wait > 0))
        except (asyncio.CancelledError, GeneratorExit, BackendUnavailable):
            raise
        except BaseException:  # of a signal, which may have come between the reply and here
            leftovers.leave(lambda: self._run(attempt.place.leave()))
            raise

    async def arelease(self, grant: Grant) -> bool:
        try:
            given, again = await self._asked(RELEASE, grant, PATIENCE)
        except (asyncio.CancelledError, GeneratorExit):  # perhaps before it was sent; twice does no harm
            leftovers.leave(partial(self.release, grant))
            raise
        if not given and again:  # sent twice: the first one did it, unless the lease had ended
            return grant.valid_until is not None and clock.now() < grant.valid_until
        return bool(given)

    async def averify(self, grant: Grant) -> bool:
        holds, _ = await self._asked(HOLDS, grant, PATIENCE)
        return bool(holds)

    async def aextend(self, grant: Grant, ttl: float, renews: bool = False) -> Grant | None:
        asked = clock.now()
        extended, _ = await self._asked(EXTEND, grant, SILENCE, milliseconds(ttl), int(asked * 1e6), renews=renews)
        return grant._replace(valid_until=asked + ttl - drift(ttl)) if extended else None

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        return run(self.aextend(grant, ttl))

    def renew(self, grant: Grant, ttl: float) -> Grant | None:
        return run(self.aextend(grant, ttl, renews=True))

    async def _asked(
        self, script: Script, grant: Grant, patience: float, *args: Any, renews: bool = False
    ) -> tuple[Any, bool]:
        claim = grant.claim
        keys = keys_of(claim.key.text_bytes)
        request = Request(script, keys, holder_of(claim, grant.session), *args, until=grant.valid_until or math.inf)
        until = clock.now() + patience
        return await self._told(self.servers.call(keys, lambda server: request, until, renews=renews))

    async def _told(self, asking: Awaitable[T]) -> T:
        """Its result, or its error in the words of a caller."""
        try:
            return await asking
        except ConnectionFailed as error:
            raise self._failed(error) from (error.__cause__ or error)

    def _failed(self, error: ConnectionFailed) -> BackendUnavailable:
        return BackendUnavailable(f"The Redis server of alias {self.alias!r}: {error}")

    # for operators

    def check(self) -> list[CheckMessage]:
        return doctor.check(self.alias, self.options, self.target)

    def diagnose(self) -> Iterable[Finding]:
        return doctor.findings(self.servers)

    def listed(self, keys: frozenset[str] | None) -> list[LockInfo]:
        try:
            return introspection.listed(self.servers, self.alias, keys, PATIENCE)
        except ConnectionFailed as error:
            raise self._failed(error) from (error.__cause__ or error)
        finally:
            self.wake_at(clock.now() + TICK)  # closes the connection of a process that only lists locks

    def break_lock(self, info: LockInfo) -> bool:
        return bool(self._run(introspection.break_request(info)))

    def _run(self, request: Request) -> Any:
        reply, _ = run(self._told(self.servers.call(request.keys, lambda server: request, clock.now() + PATIENCE)))
        return reply

    # looking after

    def tick(self, now: float) -> float | None:
        return now + TICK if self.servers.tick(now) else None

    def close(self) -> None:
        self.servers.close()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self.servers.after_fork()
