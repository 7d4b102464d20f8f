"""Locks as methods of managers and querysets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from django.core.exceptions import ValidationError
from django.db import models

from django_distlock.keys import validate_name
from django_distlock.locks.lock import advisory_lock
from django_distlock.validation import UNSET, Timeout

from .rows.fetch import RowLockOptions, locked_rows
from .rows.lock import RowLock, row_lock
from .tables.lock import table_lock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_distlock.locks.lock import Lock

    from .rows.fetch import RowOptions
    from .tables.modes import TableLockMode

M = TypeVar("M", bound=models.Model, covariant=True)


class LockingQuerySet(models.QuerySet[M]):
    """A queryset with locks on its rows, on its table, and on names that belong to its model."""

    def lock_table(self, mode: str | TableLockMode = "write", **options: Any) -> table_lock:
        """:func:`table_lock` of the model, beyond the rows of the queryset: ``with Account.objects.lock_table():``."""
        rows: Any = self.all()
        rows._for_write = True
        return table_lock(self.model, mode=mode, **{"using": rows.db, **options})

    def lock_rows(
        self, *, skip_locked: bool = False, into: str | None = None, **options: Unpack[RowOptions]
    ) -> RowLock[list[M]]:
        """:func:`row_lock` of these rows: ``with Account.objects.filter(...).lock_rows() as accounts:``."""
        return row_lock(self, skip_locked=skip_locked, into=into, **options)

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
        options = RowLockOptions(timeout=timeout, nowait=nowait, of=of, no_key=no_key)
        found = self.filter(**lookup)
        if not found.query.is_sliced and len(found.query.alias_map) <= 1:  # a join may find a row twice
            found = found.order_by("pk")[:2]  # two are enough to see that there are several
        with locked_rows(found, options, inside=True) as rows:
            pass  # they stay locked to the end of the transaction
        if len(rows) == 1:
            return rows[0]
        model: Any = self.model
        if not rows:
            raise model.DoesNotExist(f"{model._meta.object_name} matching query does not exist.")
        raise model.MultipleObjectsReturned(f"lock_row() found more than one {model._meta.object_name}.")

    def advisory_lock(self, name: str, **options: Any) -> Lock:
        """:func:`advisory_lock` with a name that belongs to the model's table: two models never share a name, a model
        and its proxies do. In a decorator ``name`` may have ``{fields}``."""
        return advisory_lock(f"{self._scope()}:name:{validate_name(name)}", **options)

    def advisory_row_lock(self, pk: object, **options: Any) -> Lock:
        """An advisory lock for one row, which need not exist: for engines without row locks (MyISAM), and for work that
        outlasts a transaction. It excludes only code that takes the same lock."""
        if pk is None:
            raise ValueError("pk must not be None.")
        try:
            value = self.model._meta.pk.to_python(pk)  # 7 and "7" are one row
        except (ValidationError, TypeError, ValueError) as error:
            raise ValueError(f"pk is {pk!r}, which is no primary key of {self.model._meta.label}.") from error
        return advisory_lock(f"{self._scope()}:row:{_escaped(str(value))}", **options)

    def _scope(self) -> str:
        return f"table:{_escaped(self.model._meta.db_table)}"


class LockingManager(models.Manager.from_queryset(LockingQuerySet)):  # type: ignore[misc]
    """``objects = LockingManager()``; for a queryset class of your own, which inherits from :class:`LockingQuerySet`,
    ``LockingManager.from_queryset(MyQuerySet)()``."""


def _escaped(text: str) -> str:
    """Escape the characters that separate the parts of a name or mark a field of a template."""
    return re.sub(r"[%:{}]", lambda match: f"%{ord(match[0]):02X}", text)
