"""Models that refuse the writes of a holder that has lost its lock."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connections, models, router, transaction

from django_distlock.exceptions import LockLost, UnsupportedOperation

from .querysets import FencedQuerySet
from .tokens import FENCE, Fencing, Token, read_token, refuse_later

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import ClassVar, Self

    from django.db.models.base import ModelBase

_CARRIED = (FENCE, "_fence_given", "_fence_unread")


@contextmanager
def _unbroken(using: str) -> Iterator[None]:
    """Keep a transaction usable after LockLost: a refused UPDATE has changed nothing, but after any error of ``save()``
    Django marks it for rollback."""
    try:
        yield
    except LockLost as lost:
        connection: Any = connections[using]
        if connection.rollback_exc is lost:
            connection.needs_rollback, connection.rollback_exc = False, None
        raise


class FencedModel(models.Model):
    """A model whose rows remember the highest fencing token that has written them.

    ``Model.objects.fenced(lease)`` and ``save(fence=lease)`` write only rows that no later token has written. A plain
    ``save()`` uses the token of the fenced queryset that read the instance, else the one that the row had then: it
    cannot undo what a later holder has written since. A plain ``QuerySet.update()`` is not checked.
    """

    _fence_given: Token | None = None  # of the fenced queryset that read the instance
    _fence_unread = False  # is the fence missing, or newer than other fields?
    _fence_due: int | None = None  # the token of the save() that is running

    fence = models.BigIntegerField(default=0, editable=False)

    objects: ClassVar[models.Manager[Self]] = models.Manager.from_queryset(FencedQuerySet)()

    class Meta:
        abstract = True

    def save(
        self,
        *,
        fence: Fencing | int | None = None,
        force_insert: bool | tuple[ModelBase, ...] = False,
        force_update: bool = False,
        using: str | None = None,
        update_fields: Iterable[str] | None = None,
    ) -> None:
        """Save with the fencing token of a lease, or an int; by default with the token that the instance carries.

        Raises LockLost if the row was written with a later token; LockLost or LockNotHeld, before anything is sent, if
        this process knows that the lease is over; UnsupportedOperation if the engine gives no tokens, or if the
        instance was read without its fence. ``update_fields`` need not name the fence. After an error the instance
        carries the same token as before.
        """
        if update_fields is not None:
            update_fields = set(update_fields)
        before = {name: self.__dict__[name] for name in _CARRIED if name in self.__dict__}
        outer = self._fence_due  # a signal handler may save the same instance in between
        try:
            self._fence_due = None
            if update_fields != set():  # an empty set saves nothing
                self._fence_due = self.fence = self._token(fence)
                update_fields = update_fields and {*update_fields, FENCE}
            database = using or router.db_for_write(type(self), instance=self)
            # A caller inside atomic() can go on: with several tables through a savepoint, which Django leaves out.
            with transaction.atomic(database) if self._meta.parents else _unbroken(database):
                super().save(
                    force_insert=force_insert, force_update=force_update, using=using, update_fields=update_fields
                )
        except BaseException:
            for name in _CARRIED:
                self.__dict__.pop(name, None)
            self.__dict__.update(before)
            raise
        finally:
            self._fence_due = outer

    def _token(self, fence: Fencing | int | None) -> int:
        """The number to save with: that of ``fence``, else the one that the instance carries."""
        if fence is not None:
            number = read_token("fence", fence).still_held()
            self._fence_given, self._fence_unread = None, False
            return number
        if self._fence_given is not None:
            return self._fence_given.still_held()
        if self._fence_unread or FENCE not in self.__dict__:
            raise UnsupportedOperation(
                f"save() of a {self._meta.object_name} that was read without its fence, or whose fence was read later "
                "than the rest, could undo a later holder's write: read the whole row (refresh_from_db()), or say "
                "save(fence=lease)."
            )
        number = self.__dict__[FENCE]
        if not isinstance(number, int):
            raise TypeError(
                f"The fence of a {self._meta.object_name} must be an int to be saved, not {number!r}: leave it as it "
                "was read, or say save(fence=lease)."
            )
        return number

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
        """As Django's, with the fence. If it reads only a part of a row that was written since (some ``fields``, a
        ``from_queryset`` that defers some), a plain ``save()`` is refused: the rest is older than the fence."""
        before = self.__dict__.get(FENCE)
        whole = fields is None and self._reads_all(from_queryset)
        if fields is None:
            self.__dict__.setdefault(FENCE, None)  # without it Django leaves it deferred
        try:
            super().refresh_from_db(using, fields if fields is None else list(fields), from_queryset)
        finally:
            if self.__dict__.get(FENCE, 0) is None:
                del self.__dict__[FENCE]
        if whole:
            self._fence_unread = FENCE not in self.__dict__
        elif self.__dict__.get(FENCE) != before:
            self._fence_unread = True
        if (token := getattr(from_queryset, "_fence", None)) is not None:
            self._fence_given = token

    def _reads_all(self, from_queryset: Any) -> bool:
        """Does the queryset, or the base manager, read all fields that this instance has?"""
        rows = type(self)._base_manager.all() if from_queryset is None else from_queryset
        mask = rows.query.get_select_mask()
        here = {field for field in self._meta.concrete_fields if field.attname in self.__dict__}
        return not mask or here <= {*mask}

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
        if not updated:
            refuse_later(base_qs.filter(pk=pk_val), number)
        return updated
