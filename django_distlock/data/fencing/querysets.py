"""Querysets whose writes carry a fencing token."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.db import models, transaction
from django.db.models.expressions import Col
from django.db.models.lookups import Exact
from django.db.models.query import ModelIterable
from django.db.models.sql import UpdateQuery
from django.db.models.sql.where import AND

from django_distlock.exceptions import UnsupportedOperation

from .tokens import FENCE, Fencing, Token, own_fence, read_token, refuse_later

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Row = TypeVar("Row", bound=models.Model, covariant=True)


class FencedQuerySet(models.QuerySet[Row]):
    """A queryset with :meth:`fenced`. Its writes are Django's until that is called.

    ``update_or_create()`` writes through ``create()`` and ``save()``, and so is fenced too.
    """

    _fence: Token | None = None

    def fenced(self, fence: Fencing | int) -> Self:
        """Return a queryset whose writes carry the fencing token of this lease, or this int.

        A write changes all rows that it matches, or none if one of them was written with a later token: LockLost.
        ``update()`` of one row by its primary key is one statement. Raises LockLost or LockNotHeld, and sends nothing,
        if this process knows that the lease is over; UnsupportedOperation if the engine of the lease gives no tokens;
        TypeError if the model has no fence in its own table.
        Source: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html

        Instances that it reads carry the token, and their ``save()`` uses it.
        """
        if own_fence(self.model) is None:
            raise TypeError(
                f"{self.model.__name__} has no fence in its own table; let it inherit from "
                "django_distlock.data.FencedModel."
            )
        rows = self._clone()
        rows._fence = read_token(fence)
        if rows._iterable_class is ModelIterable:
            rows._iterable_class = FencedIterable
        return rows

    def update(self, **kwargs: Any) -> int:
        """Return the number of rows. LockLost if the filter matches a row that was written with a later token; a filter
        that matches nothing gives 0. ``fenced(lease).update()`` without a field only raises the fence."""
        if self._fence is None:
            return super().update(**kwargs)
        if FENCE in kwargs:
            raise TypeError(f"{FENCE!r} is set by fenced(); leave it out.")
        number, rows = self._begin()
        due = rows.filter(**{f"{FENCE}__lte": number})
        in_one_table = rows._in_one_table(kwargs)
        one = in_one_table and _names_one_row(rows.query)
        with nullcontext() if one else transaction.atomic(rows.db):
            if not in_one_table:
                return rows._raise_fence(number).update(**kwargs, **{FENCE: number})
            updated = due.update(**kwargs, **{FENCE: number})
            if not (one and updated):  # a row may have been left out: it is unchanged, so the filter still finds it
                refuse_later(rows, number)
            return updated

    def delete(self) -> tuple[int, dict[str, int]]:
        """As Django's, with cascades and signals. The rows are fenced first, in the same transaction."""
        if self._fence is None:
            return super().delete()
        number, rows = self._begin()
        with transaction.atomic(rows.db):
            return rows._raise_fence(number).delete()

    delete.queryset_only = True  # type: ignore[attr-defined]

    def bulk_update(self, objs: Iterable[Row], fields: Iterable[str], batch_size: int | None = None) -> int:
        """As Django's, but all batches or none: it writes them through :meth:`update`."""
        if self._fence is None:
            return super().bulk_update(objs, fields, batch_size)
        objs, self._for_write = tuple(objs), True
        with transaction.atomic(self.db):  # with a savepoint, unlike Django's
            updated = super().bulk_update(objs, fields, batch_size)
        _carry(objs, self._fence.number)
        return updated

    def create(self, **kwargs: Any) -> Row:
        if self._fence is None:
            return super().create(**kwargs)
        return super().create(**kwargs, **{FENCE: self._fence.still_held()})

    def bulk_create(self, objs: Iterable[Row], *args: Any, **kwargs: Any) -> list[Row]:
        """As Django's; ``update_conflicts`` raises UnsupportedOperation, because it overwrites without a condition."""
        if self._fence is None:
            return super().bulk_create(objs, *args, **kwargs)
        if kwargs.get("update_conflicts") or (len(args) > 2 and args[2]):
            raise UnsupportedOperation(
                "bulk_create(update_conflicts=True) cannot be fenced: use update_or_create() or bulk_update()."
            )
        objs = list(objs)
        _carry(objs, self._fence.still_held())
        return super().bulk_create(objs, *args, **kwargs)

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone._fence = self._fence
        return clone

    def _merge_sanity_check(self, other: models.QuerySet[Any]) -> None:
        """Refuse ``&``, ``|`` and ``^``, which would lose the token of one side."""
        if self._fence is not None or getattr(other, "_fence", None) is not None:
            raise TypeError("Combine the querysets first, then call fenced().")
        super()._merge_sanity_check(other)  # type: ignore[misc]

    def _begin(self) -> tuple[int, Self]:
        """The number to write with, and the rows on the database that is written, as Django's own queryset."""
        self._for_write = True
        rows = self.using(self.db)
        number, rows._fence = rows._fence.still_held(), None  # type: ignore[union-attr]
        return number, rows

    def _in_one_table(self, kwargs: Mapping[str, Any]) -> bool:
        """Is one UPDATE statement enough? With joins Django moves the condition into a subquery, which PostgreSQL does
        not look at again after it has waited for a row."""
        query: Any = self.query.chain(UpdateQuery)
        query.add_update_values(kwargs)
        query.get_initial_alias()
        return not query.related_updates and query.group_by is None and query.count_active_tables() == 1

    def _raise_fence(self, number: int) -> Self:
        """Set the fence of every row, which locks the rows against fenced writers; return these rows."""
        keys = {*self.order_by().values_list("pk", flat=True)}  # a join may give a row twice
        fences = self.model._base_manager.using(self.db).filter(pk__in=keys)
        if fences.filter(**{f"{FENCE}__lte": number}).update(**{FENCE: number}) != len(keys):
            refuse_later(fences, number)
        return self.filter(pk__in=keys)


for _write in ("update", "delete", "bulk_update", "create", "bulk_create"):
    vars(FencedQuerySet)[_write].alters_data = True  # as Django's: no template calls them


class FencedIterable(ModelIterable):  # type: ignore[type-arg]  # no subscript at run time
    """Gives instances that carry the token of their queryset."""

    def __iter__(self) -> Iterator[Any]:
        queryset: Any = self.queryset
        token = queryset._fence
        for row in super().__iter__():
            row._fence_given = token
            yield row


def _carry(objs: Iterable[models.Model], number: int) -> None:
    for obj in objs:
        vars(obj).update({FENCE: number, "_fence_given": None, "_fence_unread": False})


def _names_one_row(query: Any) -> bool:
    """Has the filter an exact value of a unique field?"""
    where = query.where
    return not where.negated and any(
        isinstance(test, Exact) and isinstance(test.lhs, Col) and test.lhs.target.unique and test.rhs_is_direct_value()
        for test in (where.children if where.connector == AND else ())
    )
