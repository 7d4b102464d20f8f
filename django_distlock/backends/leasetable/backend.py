"""Leases in a table, on any database: a name, a token, an expiry and a fencing token per lock.

One statement takes a lease if it is free or expired and has no waiters, and one frees it. A waiter draws a ticket and
reads the lease repeatedly, the more often the nearer its turn. Times are those of the database's clock.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from typing import TYPE_CHECKING, Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

from django_distlock.backends.base import IDLE, TICK, Backend
from django_distlock.backends.cleanup import PendingCleanup
from django_distlock.concurrency import clock
from django_distlock.concurrency.deadline import LEAST_ANSWER, LEAST_PATIENCE
from django_distlock.concurrency.flow import clean_up, run
from django_distlock.records import Claim, Finding, Grant, LockInfo, drift

from . import doctor
from .pruning import Pruning
from .records import StoreError, StoreOverloaded, Ticket
from .server import ServerStore
from .sqlite import FILE_ERRORS, SqliteStore
from .statements import Holder
from .waiter import ASKING, TicketHolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from django.core.checks import CheckMessage

    from django_distlock.keys import LockKey

    from .statements import Store
    from .wakeups import WakeSocket

# Seconds for a release or a listing; and for a renewal, which delays the renewals of other leases.
PATIENCE, RENEWAL_PATIENCE = 2.0, 1.0
# A waiter with less time than this does not look again; seconds.
LAST_LOOK = 0.003
# Seconds after its timeout in which a waiter leaves the queue by itself. After that the clean-up does it.
LEAVE_TIMEOUT = 0.02


class LeaseTableBackend(Backend):
    """OPTIONS: ``database``, the alias in DATABASES (default: "default").

    On SQLite the leases are in a file beside the database, else in the tables that ``migrate`` makes.
    """

    supports_ttl = True
    supports_fencing = True
    supports_break = True
    queues_waiters = True
    option_names: ClassVar[frozenset[str]] = frozenset({"database"})

    def __init__(self, alias: str, options: Mapping[str, Any]) -> None:
        super().__init__(alias, options)
        self.database: str = options.get("database", DEFAULT_DB_ALIAS)
        if self.database not in connections.settings:
            raise ImproperlyConfigured(
                f"DISTLOCK[{alias!r}]: OPTIONS['database'] is {self.database!r}, which is not in DATABASES."
            )
        self.store: Store
        # SQLite answers at once: a thread needs no watch.
        self._embedded: SqliteStore | None = None
        if connections[self.database].vendor == "sqlite":
            self.store = self._embedded = SqliteStore(alias, self.database, lambda: self.threads)
        else:
            self.tables = ("leaserow", "leaseticket")
            self.store = ServerStore(alias, self.database, lambda: self.threads, lambda when: self.wake_at(when))
        self._sql = self.store.statements
        self._begin()

    def _begin(self) -> None:
        self._holder = Holder()
        # Claims that are asked for, with their ticket once they wait, and with their grant until the caller has it for
        # certain: an interrupted caller withdraws the claim, and its lease is freed.
        self._claims: dict[str, TicketHolder | Grant | None] = {}
        self._cleanup = PendingCleanup(self._undo_claim, f"distlock-{self.alias}-undo")
        self._pruning = Pruning(self.store, self.alias)

    def try_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        store, waiter = self._embedded, self._claims.get(claim.token)
        if store is None or self._cleanup.requests or (waiter is not None and wait < LAST_LOOK):
            return run(self._acquire(claim, wait))
        asked = clock.now()
        try:
            if isinstance(waiter, TicketHolder):
                fence = waiter.ask(store.file(), store.statements, claim, self._holder.text())
                waiter.took(asked)
                return None if fence is None else self._granted(claim, fence, asked)
            self._claims[claim.token] = ASKING
            if not store.statements.expects_queue(claim):  # most often it is free: one statement, and no socket
                fence = store.statements.take(store.file(), claim, self._holder.text())
                if fence is not None:
                    return self._granted(claim, fence, asked)
            socket = self._wake_socket(wait)
            address = None if socket is None else socket.address
            entered = store.statements.enter(store.file(), claim, self._holder.text(), wait > 0, address)
            return self._entered(claim, asked, wait, entered, socket)
        except FILE_ERRORS:
            return run(self._acquire(claim, wait))
        except BaseException:
            self.withdraw(claim)
            raise

    async def atry_acquire(self, claim: Claim, wait: float = 0) -> Grant | None:
        return await self._acquire(claim, wait)

    async def _acquire(self, claim: Claim, wait: float) -> Grant | None:
        asked = clock.now()
        waiter = self._claims.get(claim.token)
        try:
            if not isinstance(waiter, TicketHolder):
                if self._cleanup.requests and not self._cleanup.discard(claim.token):
                    return None
                self._claims[claim.token] = ASKING
                until = asked + self._patience(wait)
                socket = self._wake_socket(wait)
                address = None if socket is None else socket.address
                enter, who = self._sql.enter, self._holder.text()
                entered = await self.store.run(until, enter, claim, who, wait > 0, address)
                return self._entered(claim, asked, wait, entered, socket)
            if wait < LAST_LOOK:
                return None
            fence = await waiter.look(self.store, claim, self._holder.text())
            return None if fence is None else self._granted(claim, fence, asked)
        except StoreError as error:
            self._claims.pop(claim.token, None)
            if isinstance(waiter, TicketHolder) or error.uncertain:
                self._leave_behind(claim, error.uncertain)
            if isinstance(error, StoreOverloaded) and wait > 0:
                return None  # other callers of this process used all the time
            raise
        except GeneratorExit:
            self._leave_behind(claim, True)
            raise
        except BaseException:
            await clean_up(self._withdraw(claim))
            raise

    def _entered(
        self,
        claim: Claim,
        asked: float,
        wait: float,
        entered: tuple[int | None, Ticket | None],
        socket: WakeSocket | None,
    ) -> Grant | None:
        fence, ticket = entered
        if fence is not None:
            return self._granted(claim, fence, asked)
        if ticket is not None:
            self._claims[claim.token] = TicketHolder(ticket, asked + wait, asked + self._patience(wait), socket)
        else:
            del self._claims[claim.token]
        return None

    def _wake_socket(self, wait: float) -> WakeSocket | None:
        """The socket at which this thread can be woken, if it is to wait for a lease in a file."""
        if self._embedded is None or wait <= 0 or _get_running_loop() is not None:
            return None
        return self._embedded.statements.wakes.mine()

    def _patience(self, wait: float) -> float:
        """Seconds for the first answer. A file has no server that could be silent, only processes that write to it."""
        server = wait > 0 and self._embedded is None
        return max(wait, LEAST_ANSWER if server else LEAST_PATIENCE)

    def _granted(self, claim: Claim, fence: int, asked: float) -> Grant:
        ttl = claim.ttl or 0.0
        grant = Grant(claim=claim, fence=fence, acquired_at=asked, valid_until=asked + ttl - drift(ttl))
        self._claims[claim.token] = grant
        return grant

    def pause(self, claim: Claim, attempt: int) -> float:
        waiter = self._claims.get(claim.token)
        return waiter.pause() if isinstance(waiter, TicketHolder) else super().pause(claim, attempt)

    def wait(self, claim: Claim, attempt: int, longest: float) -> None:
        waiter = self._claims.get(claim.token)
        if self._embedded is None or not isinstance(waiter, TicketHolder):
            super().wait(claim, attempt, longest)
        else:
            waiter.wait(self._embedded, claim, longest)

    def withdraw(self, claim: Claim) -> None:
        run(self._withdraw(claim))

    async def awithdraw(self, claim: Claim) -> None:
        await self._withdraw(claim)

    async def _withdraw(self, claim: Claim) -> None:
        """Leave the queue, and free a lease whose caller was interrupted before it had it."""
        if claim.token not in self._claims:
            return
        waiter, now = self._claims.pop(claim.token), clock.now()
        until = now + LEAST_PATIENCE
        if isinstance(waiter, TicketHolder):
            if self._embedded is None and now > waiter.deadline - LAST_LOOK:
                self._leave_behind(claim, waiter.asking)  # the caller has no time for a reply
                return
            until = min(until, waiter.until + LEAVE_TIMEOUT)
        asking = not isinstance(waiter, TicketHolder) or waiter.asking
        try:
            await self._undo_claim(claim, until, asking)
        except StoreError as error:
            self._leave_behind(claim, error.uncertain)

    def _leave_behind(self, claim: Claim, uncertain: bool) -> None:
        """Have the claim undone in the background."""
        self._claims.pop(claim.token, None)
        self._cleanup.add(claim.token, claim, claim.ttl or 0.0, uncertain)
        self.wake_at(clock.now())

    async def _undo_claim(self, claim: Claim, until: float, asking: bool = True) -> None:
        if asking:
            await self.store.run(until, self._sql.give, claim)
        await self.store.run(until, self._sql.leave, claim)

    def release(self, grant: Grant) -> bool:
        store = self._embedded
        if store is not None:
            try:
                if store.statements.release(store.file(), grant):
                    self._claims.pop(grant.claim.token, None)
                    return True
            except FILE_ERRORS:
                pass  # _release asks again, and handles these
            except BaseException:
                self._leave_behind(grant.claim, True)
                raise
        return run(self._release(grant))

    async def arelease(self, grant: Grant) -> bool:
        return await self._release(grant)

    async def _release(self, grant: Grant) -> bool:
        claim = grant.claim
        self._claims.pop(claim.token, None)
        try:
            given = await self.store.run(clock.now() + PATIENCE, self._sql.release, grant)
        except StoreError as error:
            self._leave_behind(claim, error.uncertain)
            raise
        except BaseException:
            self._leave_behind(claim, True)
            raise
        if given is None:  # it was repeated: the first statement freed the lease, unless that had ended
            return grant.valid_until is not None and clock.now() < grant.valid_until
        return bool(given)

    def verify(self, grant: Grant) -> bool:
        return run(self._verify(grant))

    async def averify(self, grant: Grant) -> bool:
        return await self._verify(grant)

    async def _verify(self, grant: Grant) -> bool:
        return bool(await self.store.run(clock.now() + PATIENCE, self._sql.holds, grant.claim))

    def extend(self, grant: Grant, ttl: float) -> Grant | None:
        return run(self._extend(grant, ttl))

    async def aextend(self, grant: Grant, ttl: float) -> Grant | None:
        return await self._extend(grant, ttl)

    async def _extend(self, grant: Grant, ttl: float) -> Grant | None:
        asked = clock.now()
        if not await self.store.run(clock.now() + RENEWAL_PATIENCE, self._sql.extend, grant.claim, ttl):
            return None
        valid_until = asked + ttl - drift(ttl)
        return Grant(claim=grant.claim, fence=grant.fence, acquired_at=grant.acquired_at, valid_until=valid_until)

    def diagnose(self) -> Iterable[Finding]:
        return doctor.findings(self.store, self.database)

    def check(self) -> list[CheckMessage]:
        return doctor.check(self.alias, self.database) if self._embedded is not None else []

    def inspect(self) -> Iterable[LockInfo]:
        return [row.info(self.alias) for row in run(self.store.run(clock.now() + PATIENCE, self._sql.rows))]

    def held_among(self, keys: Iterable[LockKey]) -> set[LockKey]:
        listed = {self.listed_as(key): key for key in keys}
        return {listed[key] for key in run(self.store.run(clock.now() + PATIENCE, self._sql.held, listed))}

    def break_lock(self, info: LockInfo) -> bool:
        return bool(run(self.store.run(clock.now() + PATIENCE, self._sql.break_lease, info.key, info.fence or 0)))

    def prune(self) -> int:
        """Delete the leases that ended more than 24 hours ago; how many. Fences follow the clock and go on rising."""
        return self._pruning.run()

    def prune_old(self, days: float) -> Mapping[str, int]:
        return {"leases": self.prune()}

    def tick(self, now: float) -> float | None:
        due = self.store.watch(now)
        cleaned = self._cleanup.tick(now)
        if self.store.is_open:
            self._pruning.tick(now)
            if now - self.store.session.used_at >= IDLE:
                self.store.close_idle()
        for token, claim in list(self._claims.items()):
            if isinstance(claim, Grant) and now - claim.acquired_at > TICK:
                self._claims.pop(token, None)
        in_use = now + TICK if self.store.is_open or self._claims else None
        times = [when for when in (due, cleaned, in_use) if when is not None]
        if not times:
            self.threads.stop_if_idle()
        return min(times, default=None)

    def close(self) -> None:
        self._cleanup.close()
        self._pruning.close()
        self.store.close()
        super().close()

    def after_fork(self) -> None:
        super().after_fork()
        self.store.abandon()
        self._begin()
