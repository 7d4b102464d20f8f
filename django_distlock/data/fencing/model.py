"""Models that refuse the writes of a holder that has lost its lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections, models

from django_distlock.exceptions import UnsupportedOperation

from .querysets import FencedQuerySet
from .tokens import FENCE, Fencing, Token, read_token, refuse_later

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import ClassVar, Self


class FencedModel(models.Model):
    """A model whose rows remember the highest fencing token that has written them.

    ``Model.objects.fenced(lease)`` and ``save(fence=lease)`` write only rows that no later token has written. A plain
    ``save()`` uses the token of the fenced queryset that read the instance, else the one that the row had then: it
    cannot undo what a later holder has written since. A plain ``QuerySet.update()`` is not checked.

    With ``enforce_fence = True`` the database itself refuses to lower a fence, whoever writes: by a trigger, which
    ``migrate`` creates on PostgreSQL, MySQL, MariaDB and SQLite, and drops if it is no longer asked for.
    """

    enforce_fence: ClassVar[bool] = False

    _fence_given: Token | None = None  # of the fenced queryset that read the instance
    _fence_unread = False  # is the fence missing, or newer than other fields?
    _fence_due: int | None = None  # the token of the save() that is running

    fence = models.BigIntegerField(default=0, editable=False)

    objects: ClassVar[models.Manager[Self]] = models.Manager.from_queryset(FencedQuerySet)()

    class Meta:
        abstract = True

    def save(
        self, *, fence: Fencing | int | None = None, update_fields: Iterable[str] | None = None, **kwargs: Any
    ) -> None:
        """Save with the fencing token of a lease, or an int; by default with the token that the instance carries.

        Raises LockLost if the row was written with a later token; LockLost or LockNotHeld, before anything is sent, if
        this process knows that the lease is over; UnsupportedOperation if the engine gives no tokens, or if the
        instance was read without its fence. ``update_fields`` need not name the fence. After an error the instance has
        the fence that it had before, and an enclosing ``atomic()`` is rolled back, as after any error of ``save()``.
        """
        if update_fields is not None and not (update_fields := {*update_fields}):
            return  # Django saves nothing either
        token = self._carried() if fence is None else read_token(fence)
        before, outer = self.__dict__.get(FENCE), self._fence_due  # a signal handler may save it in between
        self.fence = self._fence_due = token.still_held()
        try:
            super().save(update_fields=update_fields and {*update_fields, FENCE}, **kwargs)
        except BaseException:
            self.__dict__.pop(FENCE, None)
            if before is not None:
                self.fence = before
            raise
        finally:
            self._fence_due = outer
        if fence is not None:
            self._fence_given = None
            # a part was written: the rest, which is read under an earlier token, may have been written in between
            self._fence_unread = update_fields is not None and (self._fence_unread or before != self.fence)

    def _carried(self) -> Token:
        """The token of the queryset that read the instance, else the one that was read with the row."""
        if self._fence_given is not None:
            return self._fence_given
        if self._fence_unread or FENCE not in self.__dict__:
            raise UnsupportedOperation(
                f"save() of a {self._meta.object_name} that was read without its fence, or whose fence was read later "
                "than the rest, could undo a later holder's write: read the instance again, with its fence, or say "
                "save(fence=lease)."
            )
        return read_token(self.fence)

    @classmethod
    def from_db(cls, *args: Any, **kwargs: Any) -> Self:
        """As Django's; notes that the fence is deferred: if it is read later, it is newer than the rest."""
        instance = super().from_db(*args, **kwargs)
        if FENCE not in instance.__dict__:
            instance._fence_unread = True
        return instance

    def refresh_from_db(
        self,
        using: str | None = None,
        fields: Iterable[str] | None = None,
        from_queryset: models.QuerySet[Any] | None = None,
    ) -> None:
        """As Django's. If it reads another fence with a part of the row only, the rest is older: ``save()`` is refused
        until all that is loaded is read again."""
        before = self.__dict__.get(FENCE)
        super().refresh_from_db(using, fields if fields is None else list(fields), from_queryset)
        whole = from_queryset is None or not from_queryset.query.deferred_loading[0]  # edit locks read it so
        if fields is None and whole:
            self._fence_unread = FENCE not in self.__dict__
        elif self.__dict__.get(FENCE) != before:
            self._fence_unread = True

    async def asave(self, *, fence: Fencing | int | None = None, **kwargs: Any) -> None:
        """As :meth:`save`, for async code."""
        await sync_to_async(self.save)(fence=fence, **kwargs)

    def _do_update(
        self, base_qs: models.QuerySet[Any], using: str | None, pk_val: Any, values: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """As Django's, which calls it once per table; false if there is no such row."""
        update = super()._do_update
        number = self._fence_due
        if number is None or all(field.name != FENCE for field in base_qs.model._meta.local_fields):
            return update(base_qs, using, pk_val, values, *args, **kwargs)
        due = base_qs.filter(**{f"{FENCE}__lte": number})
        updated = update(due, using, pk_val, values, *args, **kwargs)
        # select_on_save asks the snapshot of the transaction whether the row is there, and a later write is not in that
        asked = self._meta.select_on_save and connections[base_qs.db].in_atomic_block
        if not updated or asked:
            refuse_later(base_qs.filter(pk=pk_val), number)
        return updated
