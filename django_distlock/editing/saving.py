"""The write rule: lock the row of the lease, then the object, take the version from *that* row, and only then write.

A version that was read before the object is locked says nothing: another writer may commit in between, and a writer
that knows no edit locks (a command, a view without the mixin) takes no lease. The row of the object is the one thing
that all of them lock.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from django.core.exceptions import ObjectDoesNotExist
from django.db import Error, connections
from django.db.transaction import TransactionManagementError

from django_distlock.leases import rows
from django_distlock.leases.records import Row
from django_distlock.storage.dialect import contended, keeps_snapshot
from django_distlock.storage.transactions import begin, in_transaction

from .conf import config
from .records import EditConflict, editor_of
from .resources import among, matched, model_of, pk_of
from .signals import edit_refused
from .versions import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db import models

    from django_distlock.leases.records import Holder, Resource

    from .grants import EditGrant
    from .records import ConflictReason
    from .versions import Inline

T = TypeVar("T")
# Attempts to get the locks if the database refuses them at once: at REPEATABLE READ each wait for another save ends in
# an error of serialization. And if each attempt has waited for as long as the database allows.
ATTEMPTS, WAITS = 5, 2
# Seconds that a lease is kept after a save, or after its page is gone, for the next page of the same tab.
RESERVED = 5.0


@dataclass(kw_only=True)
class Save:
    """A save that may go on. ``objects`` and ``inlines`` are locked, and as they are in the database now.

    ``warnings`` has what would have refused the save if the mode were not "warn".
    """

    grant: EditGrant
    owner: Holder
    lease: str
    rows: dict[str, Row]
    objects: dict[Resource, models.Model]
    inlines: dict[Inline, list[models.Model]]
    warnings: list[EditConflict] = field(default_factory=list)
    written: bool = False

    @property
    def object(self) -> Any:
        """The object of the form."""
        return self.objects[self.grant.resource]

    def wrote(self, *, deleted: bool = False) -> None:
        """Count this write, so that forms which were rendered before it are refused.

        A lease of this tab stays with it for some seconds, also one that has expired: the page is about to go.
        """
        resources = list(self.grant.resources)
        if deleted:
            rows.wrote(resources, self.owner, deleted=True)
        else:
            mine = [resource for resource in resources if self._keeps(resource)]
            others = [resource for resource in resources if resource not in mine]
            if mine:
                rows.wrote(mine, self.owner, lease=self.lease, ttl=RESERVED)
            if others:
                rows.wrote(others, self.owner)
        self.written = True

    def deleted(self) -> None:
        """Count the deletion of the object; who else has it open learns of it."""
        self.wrote(deleted=True)

    def keep(self) -> None:
        """Give the lease of this tab its whole TTL again after :meth:`wrote`: its page stays."""
        for resource in sorted(self.grant.resources, key=lambda resource: resource.digest):
            if self.lease and self.rows[resource.digest].is_of(self.owner.principal, self.lease):
                rows.renew(resource, self.lease, config().ttl, principal=self.owner.principal)

    def give_back(self) -> None:
        """Free what the lease of this tab has, after :meth:`wrote`: its page is left for another one.

        It runs out, and is not dropped: from whom this tab had taken the lock is still told so.
        """
        for resource in filter(self._keeps, self.grant.resources):
            rows.release(resource, self.lease, 0, principal=self.owner.principal)

    def _keeps(self, resource: Resource) -> bool:
        """Is the lease of this tab the present one, or may it be again?"""
        row = self.rows[resource.digest]
        return bool(self.lease) and (not row.held or row.is_of(self.owner.principal, self.lease))


@contextmanager
def saving(grant: EditGrant, owner: Holder, lease: str = "", obj: models.Model | None = None) -> Iterator[Save]:
    """Run the block in a transaction that has locked the objects of ``grant``; call ``wrote()`` in it.

    ``lease`` is the id that the form had, "" without one: then the version decides. EditConflict if another user holds
    the lock, or has written since the form was rendered; with the modes "warn" and "off" only if the object is deleted.
    "off" only locks: the caller judges. Inside another transaction the block is a savepoint of it. ``obj`` is the
    object of the form, which is brought up to date; else it is read.
    """
    with ExitStack() as stack:
        begin(stack, grant.database)
        yield _locked(grant, owner, lease, obj)


def run_save(
    grant: EditGrant,
    owner: Holder,
    lease: str,
    work: Callable[[Save], T],
    *,
    obj: models.Model | None = None,
    attempts: int = 2,
) -> T:
    """Call ``work`` in :func:`saving` and return its result; again if the database gave up for other transactions.

    EditConflict("saving") if it goes on giving up: ``work`` is called at most ``attempts`` times. Inside another
    transaction, which would have to begin again as a whole, there is one attempt.
    """
    inside, failed = _inside_transaction(grant), {"locks": 0, "work": 0}
    while True:
        step, most = "locks", 0
        try:
            with saving(grant, owner, lease, obj) as save:
                step, most = "work", attempts
                return work(save)
        except Error as error:
            why = contended(error)
            if why is None:
                raise
            failed[step] += 1
            if obj is not None:  # ``work`` may have deleted it, or given it another key: that was rolled back
                obj.pk = pk_of(grant.resource)
            if inside or failed[step] >= (most or (ATTEMPTS if why == "refused" else WAITS)):
                raise _refusal(grant, owner, "saving") from error


def _inside_transaction(grant: EditGrant) -> bool:
    """Is a transaction open that other code has begun?

    The rows that a save locks are the present ones also there: PostgreSQL and SQLite refuse to lock what has changed
    since the snapshot of the transaction. MySQL locks it, and goes on reading the snapshot: TransactionManagementError.
    """
    inside = in_transaction(grant.database)
    if inside and keeps_snapshot(connections[grant.database]):
        raise TransactionManagementError(
            f"This save under an edit lock is inside a transaction on {grant.database!r} that other code has begun, by "
            "atomic() or ATOMIC_REQUESTS, and at this isolation level what is read in it may be out of date. Begin "
            'the transaction inside the save, or set OPTIONS["isolation_level"] to "read committed".'
        )
    return inside


def _locked(grant: EditGrant, owner: Holder, lease: str, obj: models.Model | None) -> Save:
    locked = rows.lock(grant.resources)
    objects = _lock_objects(grant) if obj is None else _lock_object(grant, obj)
    save = Save(grant=grant, owner=owner, lease=lease, rows=locked, objects=objects, inlines={})
    if grant.resource not in objects:
        raise _refusal(grant, owner, "deleted", changed_by=locked[grant.resource.digest].changed_by)
    for inline in grant.inlines:
        save.inlines[inline] = list(inline.rows(save.object, grant.database).select_for_update())
    if grant.mode != "off" and (conflict := _held(save) or _changed(save)) is not None:
        if grant.mode != "warn":
            edit_refused.send_robust(sender=Row, resource=conflict.resource, conflict=conflict, owner=owner)
            raise conflict
        save.warnings.append(conflict)
    return save


def _lock_object(grant: EditGrant, obj: models.Model) -> dict[Resource, models.Model]:
    """Lock the row of this instance, which has its values then."""
    present = obj.__class__._base_manager.using(grant.database).select_for_update()
    if obj.get_deferred_fields():  # the table of a parent without any field to load would not be read, and not locked
        present.filter(pk=obj.pk).first()
    try:
        obj.refresh_from_db(from_queryset=present)
    except ObjectDoesNotExist:
        return {}
    return {grant.resource: obj}


def _lock_objects(grant: EditGrant) -> dict[Resource, models.Model]:
    """Lock the rows of the objects: model by model, each in the order of its primary keys."""
    kinds: dict[str, list[Resource]] = {}
    for resource in grant.resources:
        kinds.setdefault(resource.kind or resource.model, []).append(resource)
    found: dict[Resource, models.Model] = {}
    for _kind, members in sorted(kinds.items()):
        present = model_of(members[0])._base_manager.using(grant.database).select_for_update()
        found.update(matched(members, present.filter(among(members)).order_by("pk")))
    return found


def _held(save: Save) -> EditConflict | None:
    """The conflict with another user who holds one of the objects now."""
    for resource in save.grant.resources:
        row = save.rows[resource.digest]
        if row.is_held_by_another(save.owner.principal):
            return EditConflict("held", holder=editor_of(row), obj=save.objects.get(resource), resource=resource)
    return None


def _changed(save: Save) -> EditConflict | None:
    """The conflict with a write since the form was rendered."""
    grant = save.grant
    for resource, writes in zip(grant.resources, grant.writes, strict=False):
        row = save.rows[resource.digest]
        if row.has_changed_since(writes) or resource not in save.objects:
            return EditConflict("changed", changed_by=row.changed_by, obj=save.objects.get(resource), resource=resource)
    if grant.version is not None and version_of(save.object, grant.fields, save.inlines) != grant.version:
        return EditConflict("changed", obj=save.object, resource=grant.resource)
    return None


def _refusal(grant: EditGrant, owner: Holder, reason: ConflictReason, changed_by: str = "") -> EditConflict:
    conflict = EditConflict(reason, changed_by=changed_by, resource=grant.resource)
    edit_refused.send_robust(sender=Row, resource=grant.resource, conflict=conflict, owner=owner)
    return conflict
