"""``edit_lock()``: the edit lock of an object for commands, tasks and other code, sync and async."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.transaction import TransactionManagementError

from django_distlock import BackendUnavailable, LockLost
from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import finished, run, uninterrupted
from django_distlock.concurrency.outcome import Outcome
from django_distlock.concurrency.text import one_line
from django_distlock.leases import rows
from django_distlock.leases.records import Lost, Resource, Row
from django_distlock.schema import Tenant, schema_of
from django_distlock.storage.transactions import in_transaction
from django_distlock.validation import seconds

from .conf import config
from .records import EditConflict, Owner, editor_of
from .resources import resource_of
from .signals import edit_overridden

if TYPE_CHECKING:
    from types import TracebackType

    from django.db import models

    from django_distlock.leases.records import Busy

logger = logging.getLogger("django_distlock.editing")
# A lease is renewed when a third of its TTL is over: two more attempts fit before it ends.
RENEWALS_PER_TTL = 3


class edit_lock:
    """Hold the edit lock of an object for the block; ``with`` and ``async with``. The value is this object.

    ``by`` is what others are shown while the block runs. The lease is renewed until the end, for as long as the block
    takes. EditConflict if another user is editing; with ``override`` the lock is taken from them, which is logged and
    sent as the signal ``edit_overridden``. LockLost at the end if it was taken over in turn.

    Forms that were rendered before are refused afterwards, because the block counts as a write, unless it raised;
    ``write=False`` is for code that only keeps others away. ``obj`` is a saved instance or a Resource. Must not be
    inside ``atomic()``: others would not see the lease before its end. Begin transactions within.
    """

    def __init__(
        self,
        obj: models.Model | Resource,
        *,
        by: str,
        ttl: float | None = None,
        override: bool = False,
        reason: str = "",
        write: bool = True,
    ) -> None:
        if not isinstance(by, str) or not by.strip():
            raise ValueError("by must say who edits: others are shown it.")
        self._options = config()
        self._resource = obj if isinstance(obj, Resource) else resource_of(obj)
        self._owner = Owner(principal=f"code:{secrets.token_hex(16)}", label=by)
        self._ttl: float = self._options.ttl if ttl is None else seconds("ttl", ttl, positive=True) or 0.0
        self._override = override
        self._reason = reason
        self._write = write
        self._used = False
        self._lease: Row | None = None  # None as well where the mode lets the block go on without the lock
        self._until = 0.0  # by clock.now(): the lease is held at least until then
        self._lost: Lost | None = None
        self._stop: Outcome[None] = Outcome()
        self._process = os.getpid()

    @property
    def fence(self) -> int | None:
        """A number that rises with each new holder; None if the lock was not taken."""
        return None if self._lease is None else self._lease.fence

    @property
    def held(self) -> bool:
        """False once the lock is known to be lost, or could not be renewed for a whole TTL."""
        return self._lease is not None and self._lost is None and clock.now() < self._until

    def check(self) -> None:
        """Raise LockLost if the lock is lost, for long jobs: call it before each step that writes."""
        if self._lease is not None and not self.held:
            raise LockLost(self._why())

    def __enter__(self) -> Self:
        self._take()
        self._keep()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._give_back(wrote=self._write and error is None and self._options.mode != "off")
        except (LockLost, BackendUnavailable):
            if error is None:
                raise
            logger.exception("The edit lock was not given back after an error.")

    async def __aenter__(self) -> Self:
        try:
            await finished(sync_to_async(self._take)())
        except asyncio.CancelledError as cancelled:  # it may have been taken all the same
            await uninterrupted(sync_to_async(self.__exit__)(type(cancelled), cancelled, None))
            raise
        self._keep()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await finished(sync_to_async(self.__exit__)(kind, error, trace))

    def _take(self) -> None:
        if self._used:
            raise RuntimeError("This edit_lock() has been used: make another one.")
        self._used = True
        # in this thread, which for a task is not the one that has made the object
        self._resource = replace(self._resource, schema=schema_of(self._resource.database))
        alias = self._resource.database
        if in_transaction(alias):
            raise TransactionManagementError(
                "edit_lock() must be outside atomic(): others would not see the lease before the end of the "
                "transaction. Begin the transaction inside the block."
            )
        if self._options.mode == "off":
            return
        self._tenant = Tenant(alias)
        # in the transaction of a TestCase: another connection, and so the thread that renews, does not see the lease
        self._is_test = connections[alias].in_atomic_block
        self._until = clock.now() + self._ttl
        found = rows.take("claim", self._resource, self._owner, secrets.token_hex(16), self._ttl)
        if not isinstance(found, Row) and self._override and not found.saving:
            found = self._take_over(found)
        if isinstance(found, Row):
            self._lease = found
            return
        holder = editor_of(found.holder) if found.holder is not None else None
        conflict = EditConflict("saving" if found.saving else "held", holder=holder, resource=self._resource)
        if self._options.mode != "warn":
            raise conflict
        logger.warning("%s goes on, although: %s", one_line(self._owner.label), one_line(str(conflict)))

    def _take_over(self, busy: Busy) -> Row | Busy:
        found = rows.take("takeover", self._resource, self._owner, secrets.token_hex(16), self._ttl)
        if isinstance(found, Row):
            before = busy.holder.label if busy.holder is not None else "another user"
            by = one_line(self._owner.label)
            logger.warning("%s took %s over from %s.", by, self._what, one_line(before))
            told = {"owner": self._owner, "before": busy.holder, "lease": found, "reason": self._reason}
            edit_overridden.send_robust(sender=Row, resource=self._resource, **told)
        return found

    def _keep(self) -> None:
        """Renew the lease in a thread until the block ends."""
        if self._lease is not None and not self._is_test:
            threading.Thread(target=self._renew, args=[self._lease], name="distlock-edit-renewal", daemon=True).start()

    def _renew(self, lease: Row) -> None:
        alias = self._resource.database
        try:
            self._tenant.enter()
            while not run(self._stop.wait(self._ttl / RENEWALS_PER_TTL)):
                began = clock.now()
                try:
                    found = rows.renew(self._resource, lease.lease, self._ttl, principal=self._owner.principal)
                except BackendUnavailable:
                    logger.warning("The edit lock of %s could not be renewed; the next attempt follows.", self._what)
                else:
                    if isinstance(found, Lost):
                        self._lost = found
                        logger.warning("The edit lock of %s is lost: %s", self._what, one_line(self._why()))
                        return
                    if not found.saving:  # else the row was busy, and was not prolonged
                        self._until = began + self._ttl
                connections[alias].close()  # a long job must not keep a second connection open
        finally:
            connections[alias].close()

    def _give_back(self, *, wrote: bool) -> None:
        """End the lease. ``wrote``: forms that were rendered before are refused. LockLost if it was lost meanwhile.

        BackendUnavailable if a save keeps the row for a whole TTL, so that the write cannot be counted.
        """
        self._stop.set_result(None)
        if self._process != os.getpid():  # after a fork it is the parent's
            return
        lease, principal, label = self._lease, self._owner.principal, self._owner.label
        until = clock.now() + self._ttl
        while True:
            freed = lease is not None and rows.release(
                self._resource, lease.lease, principal=principal, wrote_by=label if wrote else None
            )
            if freed:
                return
            if not wrote or (freed is False and rows.count_write(self._resource, label) is not None):
                break
            if clock.now() >= until:  # a save has kept the row all the time
                raise BackendUnavailable(f"{self._what} is being saved: the write of this block was not counted.")
        if lease is not None:
            found = rows.renew(self._resource, lease.lease, self._ttl, principal=principal)
            if isinstance(found, Lost):
                self._lost = found
                raise LockLost(self._why())

    @property
    def _what(self) -> str:
        return f"{self._resource.model} {self._resource.pk}"

    def _why(self) -> str:
        if self._lost is None:
            return f"The edit lock of {self._what} could not be renewed in time."
        by = f" by {self._lost.by}" if self._lost.by else ""
        return f"The edit lock of {self._what} was lost ({self._lost.reason.replace('_', ' ')}{by})."
