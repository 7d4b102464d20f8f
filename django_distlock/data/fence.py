"""Models whose rows refuse the write of a holder that has lost its lock."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import models, router, transaction

from .fence_tokens import FENCE, Fencing, read_token, refuse_later
from .fenced_querysets import FencedQuerySet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import ClassVar, Self

    from django.db.models.base import ModelBase

_MISSING: Any = object()


class FencedModel(models.Model):
    """A model whose rows remember the highest fencing token that has written them.

    ``Model.objects.fenced(lease)`` and ``save(fence=lease)`` write only where no later token was before. A plain
    ``save()`` carries the token that the instance was read with, so it cannot undo what was written since by a later
    holder. A plain ``QuerySet.update()`` is not checked.
    """

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
        """Save with the fencing token of a lease, or an int; without one with the token that the instance carries.

        Raises LockLost if the row was written with a later token, LockLost or LockNotHeld before anything is sent if
        this process knows that the lease is over, UnsupportedOperation if its engine gives no tokens. ``update_fields``
        need not name the fence. After a failure the instance carries the token that it carried before.
        """
        if update_fields is not None:
            update_fields = set(update_fields)
        before = self.__dict__.get(FENCE, _MISSING)
        number = before if fence is None else read_token("fence", fence).still_held()
        if not isinstance(number, int) or update_fields == set():  # deferred or an expression; nothing to save
            number = None
        else:
            self.fence = number
            update_fields = update_fields and {*update_fields, FENCE}
        save = partial(
            super().save,
            force_insert=force_insert,
            force_update=force_update,
            using=using,
            update_fields=update_fields,
        )
        try:
            with self._carrying(number):
                if not self._meta.parents:
                    save()
                    return
                # Several tables. With a savepoint, which Django does without, a caller inside atomic() can go on.
                with transaction.atomic(using or router.db_for_write(type(self), instance=self)):
                    save()
        except BaseException:
            if before is _MISSING:
                self.__dict__.pop(FENCE, None)
            else:
                self.fence = before
            raise

    @contextmanager
    def _carrying(self, number: int | None) -> Iterator[None]:
        """For ``_do_update``; a signal handler may save the instance once more meanwhile."""
        outer = getattr(self, "_carried", None)
        self._carried = number
        try:
            yield
        finally:
            self._carried = outer

    async def asave(self, *, fence: Fencing | int | None = None, **kwargs: Any) -> None:
        """:meth:`save` for a task."""
        await sync_to_async(self.save)(fence=fence, **kwargs)

    def _do_update(
        self, base_qs: models.QuerySet[Any], using: str | None, pk_val: Any, values: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Django's, once for each table; false if there is no such row."""
        update = super()._do_update
        number = getattr(self, "_carried", None)
        if number is None or all(field.name != FENCE for field in base_qs.model._meta.local_fields):
            return update(base_qs, using, pk_val, values, *args, **kwargs)
        due = base_qs.filter(**{f"{FENCE}__lte": number})
        updated = update(due, using, pk_val, values, *args, **kwargs)
        if not updated:
            refuse_later(base_qs.filter(pk=pk_val), number)
        return updated
