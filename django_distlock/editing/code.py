"""``edit_lock()``: the edit lock of an object for commands, tasks and other code, sync and async."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.db import connections
from django.db.transaction import TransactionManagementError

from django_distlock import BackendUnavailable, LockLost
from django_distlock.concurrency import clock
from django_distlock.concurrency.flow import finished, uninterrupted
from django_distlock.concurrency.text import one_line
from django_distlock.schema import Tenant, schema_of
from django_distlock.storage.transactions import in_transaction
from django_distlock.validation import seconds

from . import store
from .conf import config
from .records import EditConflict, EditLease, Lost, Owner, Resource
from .resources import resource_of
from .signals import edit_overridden

if TYPE_CHECKING:
    from types import TracebackType

    from django.db import models

    from .records import Busy

logger = logging.getLogger("django_distlock.editing")
# A lease is renewed when a third of its TTL is over: two more attempts fit before it ends.
RENEWALS_PER_TTL = 3


class EditHold:
    """The edit lock of one object, held by code. ``lease`` is the row as it was when it was claimed."""

    def __init__(self, resource: Resource, owner: Owner, lease: EditLease | None, ttl: float, began: float) -> None:
        self.resource = resource
        self.owner = owner
        self.lease = lease
        self._ttl = ttl
        self._until = began + ttl
        self._lost: Lost | None = None
        self._stop = threading.Event()
        self._tenant = Tenant(store.alias_for(resource))
        self._process = os.getpid()

    @property
    def fence(self) -> int | None:
        """A number that rises with each new holder; None if the lock was not taken."""
        return None if self.lease is None else self.lease.fence

    @property
    def held(self) -> bool:
        """False once the lock is known to be lost, or could not be renewed for a whole TTL."""
        return self.lease is not None and self._lost is None and clock.now() < self._until

    def check(self) -> None:
        """Raise LockLost if the lock is lost, for long jobs: call it before each step that writes."""
        if self.lease is not None and not self.held:
            raise LockLost(self._why())

    def start(self) -> None:
        """Renew the lease in a thread until :meth:`end`. RuntimeError if none can be started."""
        if self.lease is None or in_test_case(store.alias_for(self.resource)):
            return  # another connection does not see the rows of a TestCase
        threading.Thread(target=self._renew, name="distlock-edit-renewal", daemon=True).start()

    def _renew(self) -> None:
        alias = store.alias_for(self.resource)
        try:
            self._tenant.enter()
            while not self._stop.wait(self._ttl / RENEWALS_PER_TTL):
                began = clock.now()
                try:
                    found = store.renew(self.resource, self._id, self._ttl, principal=self.owner.principal)
                except BackendUnavailable:
                    logger.warning("The edit lock of %s could not be renewed; the next attempt follows.", self._what)
                    connections[alias].close()
                    continue
                if isinstance(found, Lost):
                    self._lost = found
                    logger.warning("The edit lock of %s is lost: %s", self._what, one_line(self._why()))
                    return
                self._until = began + self._ttl
                connections[alias].close()  # a long job must not keep a second connection open
        finally:
            connections[alias].close()

    def end(self, *, write: bool) -> None:
        """Give the lock back. LockLost if it was lost meanwhile.

        ``write`` counts a write, so that forms which were rendered before are refused.
        """
        self._stop.set()
        if self._process != os.getpid():  # after a fork it is the parent's
            return
        wrote_by = self.owner.label if write else None
        if self.lease is not None and store.release(
            self.resource, self._id, principal=self.owner.principal, wrote_by=wrote_by
        ):
            return
        if write:
            store.count_write(self.resource, self.owner.label)
        if self.lease is not None:
            found = store.renew(self.resource, self._id, self._ttl, principal=self.owner.principal)
            if isinstance(found, Lost):
                self._lost = found
                raise LockLost(self._why())

    @property
    def _id(self) -> str:
        return "" if self.lease is None else self.lease.lease

    @property
    def _what(self) -> str:
        return f"{self.resource.model} {self.resource.pk}"

    def _why(self) -> str:
        if self._lost is None:
            return f"The edit lock of {self._what} could not be renewed in time."
        by = f" by {self._lost.by}" if self._lost.by else ""
        return f"The edit lock of {self._what} was lost ({self._lost.reason.replace('_', ' ')}{by})."


class edit_lock:
    """Hold the edit lock of an object for the block; ``with`` and ``async with``. Gives an :class:`EditHold`.

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
        self._ttl: float = self._options.ttl if ttl is None else seconds("ttl", ttl, positive=True) or 0.0
        self._by = by
        self._override = override
        self._reason = reason
        self._write = write
        self._hold: EditHold | None = None

    def __enter__(self) -> EditHold:
        if self._hold is not None:
            raise RuntimeError("This edit_lock() has been used: make another one.")
        # in this thread, which for a task is not the one that has made the object
        self._resource = replace(self._resource, schema=schema_of(self._resource.database))
        if in_transaction(store.alias_for(self._resource)):
            raise TransactionManagementError(
                "edit_lock() must be outside atomic(): others would not see the lease before the end of the "
                "transaction. Begin the transaction inside the block."
            )
        hold = self._taken()
        try:
            hold.start()
        except BaseException:
            hold.end(write=False)
            raise
        self._hold = hold
        return hold

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._hold is not None  # noqa: S101 - for the type checker
        try:
            self._hold.end(write=self._write and error is None and self._options.mode != "off")
        except (LockLost, BackendUnavailable):
            if error is None:
                raise
            logger.exception("The edit lock was not given back after an error.")

    async def __aenter__(self) -> EditHold:
        entering = asyncio.ensure_future(sync_to_async(self.__enter__)())
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError as cancelled:
            try:
                await uninterrupted(entering)
            except Exception:  # it was not taken
                logger.debug("The edit lock was not taken.", exc_info=True)
            else:
                await uninterrupted(sync_to_async(self.__exit__)(type(cancelled), cancelled, None))
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await finished(sync_to_async(self.__exit__)(kind, error, trace))

    def _taken(self) -> EditHold:
        owner = Owner(principal=f"code:{secrets.token_hex(16)}", tab=secrets.token_hex(16), label=self._by)
        began = clock.now()
        if self._options.mode == "off":
            return EditHold(self._resource, owner, None, self._ttl, began)
        found = store.claim(self._resource, owner, secrets.token_hex(16), self._ttl)
        if not isinstance(found, EditLease) and self._override and not found.saving:
            found = self._take_over(owner, found)
        if isinstance(found, EditLease):
            return EditHold(self._resource, owner, found, self._ttl, began)
        conflict = EditConflict(
            "saving" if found.saving else "held",
            holder=found.holder.editor if found.holder is not None else None,
            resource=self._resource,
        )
        if self._options.mode != "warn":
            raise conflict
        logger.warning("%s goes on, although: %s", one_line(self._by), one_line(str(conflict)))
        return EditHold(self._resource, owner, None, self._ttl, began)

    def _take_over(self, owner: Owner, busy: Busy) -> EditLease | Busy:
        found = store.takeover(self._resource, owner, secrets.token_hex(16), self._ttl, self._reason or self._by)
        if isinstance(found, EditLease):
            who = (
                busy.holder.owner.label if busy.holder is not None and busy.holder.owner is not None else "another user"
            )
            logger.warning(
                "%s took %s %s over from %s.",
                one_line(self._by),
                found.resource.model,
                found.resource.pk,
                one_line(who),
            )
            edit_overridden.send_robust(
                sender=EditLease,
                resource=self._resource,
                owner=owner,
                before=busy.holder,
                lease=found,
                reason=self._reason,
            )
        return found


def in_test_case(alias: str) -> bool:
    """Is the connection in the transaction of a TestCase, whose rows another connection does not see?"""
    return any(getattr(block, "_from_testcase", False) for block in connections[alias].atomic_blocks)
