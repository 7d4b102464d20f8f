"""Locks as methods of managers and querysets."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

from django.core.exceptions import ValidationError
from django.db import models

from django_distlock.locks.lock import advisory_lock
from django_distlock.validation import UNSET, Timeout

from .fencing.querysets import FencedQuerySet
from .rows.fetch import lock_inside
from .rows.lock import RowLock, row_lock
from .rows.select_for_update import options_of
from .tables.lock import table_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.locks.lock import Lock

    from .fencing.tokens import Fencing
    from .tables.modes import TableLockMode

M = TypeVar("M", bound=models.Model, covariant=True)


class LockingQuerySet(FencedQuerySet[M]):
    """A queryset with locks on its rows, on its table, and on names that belong to its model."""

    def lock_table(self, mode: str | TableLockMode = "write", **options: Any) -> table_lock:
        """:func:`table_lock` of the model, beyond the rows of the queryset: ``with Account.objects.lock_table():``."""
        return table_lock(self.model, mode=mode, **{"using": self._locked_database(), **options})

    def lock_rows(
        self,
        *,
        timeout: Timeout = UNSET,
        nowait: bool = False,
        skip_locked: bool = False,
        of: Sequence[str] = (),
        no_key: bool = False,
        into: str | None = None,
    ) -> RowLock[list[M]]:
        """:func:`row_lock` of these rows: ``with Account.objects.filter(...).lock_rows() as accounts:``."""
        return row_lock(self, timeout=timeout, nowait=nowait, skip_locked=skip_locked, of=of, no_key=no_key, into=into)

    def lock_row(
        self,
        *,
        timeout: Timeout = UNSET,
        nowait: bool = False,
        of: Sequence[str] = (),
        no_key: bool = False,
        **lookup: Any,
    ) -> M:
        """Return the one row that ``lookup`` finds, locked until the transaction ends: ``get()`` inside ``atomic()``.

        Raises TransactionManagementError outside of a transaction, the model's DoesNotExist and
        MultipleObjectsReturned, and what :func:`row_lock` raises.
        """
        options = options_of(timeout, nowait=nowait, skip_locked=False, of=of, no_key=no_key)
        found = self.filter(**lookup)
        if not found.query.is_sliced and len(found.query.alias_map) <= 1:  # a join may find a row twice
            found = found.order_by("pk")[:2]  # two are enough to see that there are several
        rows = lock_inside(found, options)
        if len(rows) == 1:
            return rows[0]
        model: Any = self.model
        if not rows:
            raise model.DoesNotExist(f"{model._meta.object_name} matching query does not exist.")
        raise model.MultipleObjectsReturned(f"lock_row() found more than one {model._meta.object_name}.")

    def advisory_lock(self, name: str, **options: Any) -> Lock:
        """:func:`advisory_lock` with a name that belongs to the model's table: two models never share a name, a model
        and its proxies do. In a decorator ``name`` may have ``{fields}``."""
        if not isinstance(name, str):
            raise TypeError(f"name must be a str, not {type(name).__name__}.")
        if not name:
            raise ValueError("name must not be empty.")
        return advisory_lock(f"{self._scope()}:name:{name}", **options)

    def advisory_row_lock(self, pk: object, **options: Any) -> Lock:
        """An advisory lock for one row, which need not exist: for engines without row locks (MyISAM), and for work that
        outlasts a transaction. It excludes only code that takes the same lock."""
        return advisory_lock(f"{self._scope()}:row:{_escaped(str(self._primary_key(pk)))}", **options)

    def _scope(self) -> str:
        return f"table:{_escaped(self.model._meta.db_table)}"

    def _primary_key(self, pk: object) -> object:
        """``pk`` as its field converts it, so that 7 and "7" are one row."""
        if pk is None:
            raise ValueError("pk must not be None.")
        field = self.model._meta.pk
        try:
            value = field.to_python(pk)
        except (ValidationError, TypeError, ValueError) as error:
            raise ValueError(f"pk is {pk!r}, which is no primary key of {self.model._meta.label}.") from error
        return value

    def _locked_database(self) -> str:
        return self._chain_for_write().db

    def _chain_for_write(self) -> Self:
        queryset = self._chain()  # type: ignore[attr-defined]
        queryset._for_write = True
        return queryset  # type: ignore[no-any-return]


class LockingManager(models.Manager[M]):
    """``objects = LockingManager()``, or ``LockingManager.from_queryset(MyQuerySet)()`` with any queryset class."""

    _queryset_class: type[models.QuerySet[Any]] = LockingQuerySet

    @classmethod
    def from_queryset(cls, queryset_class: type[models.QuerySet[Any]], class_name: str | None = None) -> type[Self]:
        """As Django's; a queryset class without locks gets them."""
        name = class_name or f"{cls.__name__}From{queryset_class.__name__}"
        return super().from_queryset(with_locks(queryset_class), name)

    def get_queryset(self) -> LockingQuerySet[M]:
        return super().get_queryset()  # type: ignore[return-value]

    if TYPE_CHECKING:  # these go through get_queryset()

        def all(self) -> LockingQuerySet[M]: ...
        def none(self) -> LockingQuerySet[M]: ...
        def using(self, alias: str | None) -> LockingQuerySet[M]: ...
        def filter(self, *args: Any, **kwargs: Any) -> LockingQuerySet[M]: ...
        def exclude(self, *args: Any, **kwargs: Any) -> LockingQuerySet[M]: ...
        def order_by(self, *field_names: Any) -> LockingQuerySet[M]: ...
        def select_related(self, *fields: Any) -> LockingQuerySet[M]: ...

    def lock_table(self, mode: str | TableLockMode = "write", **options: Any) -> table_lock:
        """See :meth:`LockingQuerySet.lock_table`."""
        return self.get_queryset().lock_table(mode, **options)

    def lock_rows(self, **options: Any) -> RowLock[list[M]]:
        """See :meth:`LockingQuerySet.lock_rows`."""
        return self.get_queryset().lock_rows(**options)

    def lock_row(self, **options: Any) -> M:
        """See :meth:`LockingQuerySet.lock_row`."""
        return self.get_queryset().lock_row(**options)

    def advisory_lock(self, name: str, **options: Any) -> Lock:
        """See :meth:`LockingQuerySet.advisory_lock`."""
        return self.get_queryset().advisory_lock(name, **options)

    def advisory_row_lock(self, pk: object, **options: Any) -> Lock:
        """See :meth:`LockingQuerySet.advisory_row_lock`."""
        return self.get_queryset().advisory_row_lock(pk, **options)

    def fenced(self, fence: Fencing | int) -> LockingQuerySet[M]:
        """See :meth:`FencedQuerySet.fenced`."""
        return self.get_queryset().fenced(fence)


@cache
def with_locks(queryset_class: type[models.QuerySet[Any]]) -> type[models.QuerySet[Any]]:
    """The class itself if it has locks, else a subclass with locks."""
    if issubclass(queryset_class, LockingQuerySet):
        return queryset_class

    def reduce(queryset: Any) -> tuple[Any, ...]:
        return _unpickled, (queryset_class,), queryset.__getstate__()

    body = {"__module__": queryset_class.__module__, "__doc__": queryset_class.__doc__, "__reduce__": reduce}
    return type(f"Locking{queryset_class.__name__}", (queryset_class, LockingQuerySet), body)


def _unpickled(queryset_class: type[models.QuerySet[Any]]) -> models.QuerySet[Any]:
    """For pickle, which cannot find a class that was made here by its name."""
    made = with_locks(queryset_class)
    return made.__new__(made)


def _escaped(text: str) -> str:
    """Escape the characters that separate the parts of a name or mark a field of a template."""
    return re.sub(r"[%:{}]", lambda match: f"%{ord(match[0]):02X}", text)
