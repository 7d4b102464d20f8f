"""Querysets whose writes carry a fencing token."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.db import models, transaction
from django.db.models.expressions import Col
from django.db.models.lookups import Exact, In
from django.db.models.query import ModelIterable
from django.db.models.sql import UpdateQuery
from django.db.models.sql.where import AND, WhereNode

from django_distlock.exceptions import UnsupportedOperation

from .tokens import FENCE, Fencing, Token, fence_field, fence_owner, read_token, refuse_later

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

Row = TypeVar("Row", bound=models.Model, covariant=True)


class FencedQuerySet(models.QuerySet[Row]):
    """A queryset with :meth:`fenced`. Its writes are Django's until that is called."""

    _fence: Token | None = None

    def fenced(self, fence: Fencing | int) -> Self:
        """Return a queryset whose writes carry the fencing token of this lease, or this int.

        A write changes all rows that it matches, or none if one of them was written with a later token: LockLost.
        ``update()`` of one row by its primary key is one statement. Raises LockLost or LockNotHeld, and sends nothing,
        if this process knows that the lease is over; UnsupportedOperation if the engine of the lease gives no tokens.
        Source: https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html

        Instances that it reads carry the token, and their ``save()`` uses it.
        """
        fence_owner(self.model)
        rows = self._clone()
        rows._fence = read_token("fence", fence)
        if rows._iterable_class is ModelIterable:
            rows._iterable_class = FencedIterable
        return rows

    def only(self, *fields: Any) -> Self:
        """As Django's, with the fence: ``save()`` needs it for its condition."""
        return super().only(*fields)._with_fence()

    def defer(self, *fields: Any) -> Self:
        """As Django's, except for the fence: ``save()`` needs it for its condition."""
        return super().defer(*fields)._with_fence()

    def update(self, **kwargs: Any) -> int:
        """Return the number of rows. LockLost if the filter matches a row that was written with a later token; a filter
        that matches nothing gives 0. ``fenced(lease).update()`` without a field only raises the fence."""
        if self._fence is None:
            return super().update(**kwargs)
        _refuse_fence(kwargs)
        if self.query.is_sliced:
            raise TypeError("Cannot update a query once a slice has been taken.")
        self._for_write = True
        number, rows = self._fence.still_held(), self._unfenced()
        one_table = rows._in_one_table(kwargs)
        most = rows_at_most(rows.query.where) if one_table else None
        with nullcontext() if most == 1 else transaction.atomic(rows.db):
            if not one_table:
                keys = rows._raise_fence(number)
                return super(FencedQuerySet, rows.filter(pk__in=keys)).update(**kwargs) if kwargs else len(keys)
            due = rows.filter(**{f"{FENCE}__lte": number})
            updated = super(FencedQuerySet, due).update(**kwargs, **{FENCE: number})
            if updated != most:  # a row may have been left out: it is unchanged, so the filter still finds it
                refuse_later(rows, number)
            return updated

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        """As Django's, with cascades and signals. The rows are fenced first, in the same transaction."""
        if self._fence is None:
            return super().delete()
        if self.query.is_sliced:
            raise TypeError("Cannot use 'limit' or 'offset' with delete().")
        self._for_write = True
        number, rows = self._fence.still_held(), self._unfenced()
        with transaction.atomic(rows.db):
            keys = rows._raise_fence(number)
            return super(FencedQuerySet, rows.filter(pk__in=keys)).delete()

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    def bulk_update(self, objs: Iterable[Row], fields: Iterable[str], batch_size: int | None = None) -> int:
        """As Django's, but all batches or none."""
        if self._fence is None:
            return super().bulk_update(objs, fields, batch_size)
        objs, fields = tuple(objs), tuple(fields)
        _refuse_fence(fields)
        self._for_write = True
        with transaction.atomic(self.db):  # with a savepoint, unlike Django's
            updated = super().bulk_update(objs, fields, batch_size)
        _carry(objs, self._fence.number)
        return updated

    bulk_update.alters_data = True  # type: ignore[attr-defined]

    def create(self, **kwargs: Any) -> Row:
        if self._fence is None:
            return super().create(**kwargs)
        _refuse_fence(kwargs)
        return super().create(**kwargs, **{FENCE: self._fence.still_held()})

    create.alters_data = True  # type: ignore[attr-defined]

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

    bulk_create.alters_data = True  # type: ignore[attr-defined]

    def update_or_create(
        self,
        defaults: Mapping[str, Any] | None = None,
        create_defaults: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> tuple[Row, bool]:
        if self._fence is None:
            return super().update_or_create(defaults, create_defaults, **kwargs)
        defaults = dict(defaults or {})
        _refuse_fence([*defaults, *(create_defaults or {}), *kwargs])
        # FencedModel.save() makes the token that the instance carries a condition
        fenced = {**defaults, FENCE: self._fence.still_held()}
        return super().update_or_create(fenced, defaults if create_defaults is None else create_defaults, **kwargs)

    update_or_create.alters_data = True  # type: ignore[attr-defined]

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone._fence = self._fence
        return clone

    def _merge_sanity_check(self, other: models.QuerySet[Any]) -> None:
        """Refuse ``&``, ``|`` and ``^``, which would lose the token of one side."""
        if self._fence is not None or getattr(other, "_fence", None) is not None:
            raise TypeError("Combine the querysets first, then call fenced().")
        super()._merge_sanity_check(other)  # type: ignore[misc]

    def _with_fence(self) -> Self:
        names, deferred = self.query.deferred_loading
        if names and fence_field(self.model):
            self.query.deferred_loading = (names - {FENCE}, True) if deferred else (names | {FENCE}, False)
        return self

    def _unfenced(self) -> Self:
        rows = self.using(self.db)
        rows._fence = None
        return rows

    def _in_one_table(self, kwargs: Mapping[str, Any]) -> bool:
        """Is one UPDATE statement enough: are the fields, the filters and the fence in one table?"""
        query: Any = self.query.chain(UpdateQuery)
        query.add_update_values(kwargs)
        query.get_initial_alias()
        return bool(
            fence_owner(self.model)._meta.db_table == self.model._meta.db_table
            and not query.related_updates
            and query.group_by is None
            and query.count_active_tables() == 1
        )

    def _raise_fence(self, number: int) -> list[Any]:
        """Set the fence of every row, which locks the rows against fenced writers; return the primary keys."""
        owner = fence_owner(self.model)
        rows = self.order_by().values_list("pk", owner._meta.pk.name)
        keys: dict[Any, Any] = dict(rows)  # a join may give a row twice
        fences = owner._base_manager.using(self.db).filter(pk__in=list(keys.values()))
        if fences.filter(**{f"{FENCE}__lte": number}).update(**{FENCE: number}) != len(keys):
            refuse_later(fences, number)
        return list(keys)


class FencedIterable(ModelIterable):  # type: ignore[type-arg]  # no subscript at run time
    """Gives instances that carry the token of their queryset."""

    def __iter__(self) -> Iterator[Any]:
        queryset: Any = self.queryset
        token = queryset._fence
        for row in super().__iter__():
            row._fence_given = token
            yield row


def rows_at_most(condition: Any) -> int | None:
    """The most rows that a filter can match, if it has values of a unique field; else None."""
    if isinstance(condition, WhereNode):
        children = condition.children if condition.connector == AND and not condition.negated else []
        return min((most for child in children if (most := rows_at_most(child)) is not None), default=None)
    if not (isinstance(condition, (Exact, In)) and isinstance(condition.lhs, Col) and condition.lhs.target.unique):
        return None
    if not condition.rhs_is_direct_value():
        return None
    return len({*condition.rhs}) if isinstance(condition, In) else 1


def _carry(objs: Iterable[models.Model], number: int) -> None:
    for obj in objs:
        vars(obj).update({FENCE: number, "_fence_given": None, "_fence_unread": False})


def _refuse_fence(names: Iterable[str]) -> None:
    if FENCE in names:
        raise TypeError(f"{FENCE!r} is set by fenced(); leave it out.")
