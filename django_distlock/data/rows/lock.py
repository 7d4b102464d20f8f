"""``row_lock``: rows locked in a transaction, with the same meaning on every engine."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from django.db.models import Model

from django_distlock.data.base import DataLock
from django_distlock.validation import UNSET, Timeout, Unset

from .decorator import decorate
from .fetch import locked_rows
from .query import M, RowLockOptions, options_of, queryset_of, refuse_queryset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django.db.models import Manager, QuerySet

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RowLock(DataLock[R]):
    """The recipe for rows locked: enter it, or put it above a function. It has no state that threads could share.

    Made by :func:`row_lock` and by the methods of a locking manager.
    """

    target: object
    pk: object
    using: str | None
    into: str | None
    wish: RowLockOptions
    name = "row_lock"

    def __repr__(self) -> str:
        return f"row_lock({getattr(self.target, '__name__', type(self.target).__name__)})"

    def __call__(self, function: Callable[..., T]) -> Callable[..., T]:
        """Each call of ``function`` runs with the rows locked; ``into`` names the argument that gets them, which is not
        the caller's to give. (A type checker can take no argument out of a signature.)"""
        return decorate(function, self.name, self.pk, self.into, lambda pk: replace(self, pk=pk).hold())

    @contextmanager
    def hold(self) -> Iterator[R]:
        """A new block that holds the rows."""
        queryset = queryset_of(self.target, self.pk, self.using)
        with locked_rows(queryset, self.wish) as rows:
            if self.pk is UNSET:
                yield rows  # type: ignore[misc]
                return
            if rows:
                yield rows[0]
                return
        # here and not above: no row has been locked, so that an enclosing transaction may go on
        raise queryset.model.DoesNotExist(f"{queryset.model._meta.object_name} matching query does not exist.")


@overload
def row_lock(
    target: type[M],
    *,
    pk: object,
    timeout: Timeout = ...,
    nowait: bool = ...,
    of: Sequence[str] = ...,
    no_key: bool = ...,
    into: str | None = ...,
    using: str | None = ...,
) -> RowLock[M]: ...


@overload
def row_lock(
    target: QuerySet[M] | Manager[M],
    *,
    timeout: Timeout = ...,
    nowait: bool = ...,
    skip_locked: bool = ...,
    of: Sequence[str] = ...,
    no_key: bool = ...,
    into: str | None = ...,
    using: str | None = ...,
) -> RowLock[list[M]]: ...


def row_lock(
    target: Any,
    *,
    pk: object | Literal[Unset.UNSET] = UNSET,
    timeout: Timeout = UNSET,
    nowait: bool = False,
    skip_locked: bool = False,
    of: Sequence[str] = (),
    no_key: bool = False,
    into: str | None = None,
    using: str | None = None,
) -> RowLock[Any]:
    """Rows that nobody else changes or locks until the transaction ends.

    ``with row_lock(Account.objects.filter(pk__in=[7, 3])) as accounts`` opens a transaction (or uses the one that is
    open, without a savepoint) and gives the list of instances, locked and sorted by primary key, so that two callers
    with the same rows cannot wait for each other. ``with row_lock(Account, pk=7) as account`` gives one instance, or
    raises the model's ``DoesNotExist``. As a decorator a ``pk`` that is a string is the name of an argument of the call
    with a dotted path, and ``into`` the argument that gets the instance (or the list).

    ``timeout`` is in seconds, 0 (the same as ``nowait``) does not wait, None waits for ever, the default is 10 s.
    ``skip_locked`` leaves out the rows that are locked. ``of`` and ``no_key`` as for Django's ``select_for_update``;
    an engine without them takes the stronger lock. SQLite locks the whole database against writers.

    Raises LockNotAcquired or LockTimeout (busy), DeadlockDetected, UnsupportedOperation (a MySQL table without
    transactions), ValueError for a queryset that cannot be locked, FieldError for a name in ``of`` that is no relation
    of it. A row that a join finds several times is given once. An enclosing ``atomic()`` is to be rolled back then.
    """
    options = options_of(timeout, nowait=nowait, skip_locked=skip_locked, of=of, no_key=no_key)
    for argument, value in (("into", into), ("using", using)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{argument} must be a str or None, not {type(value).__name__}.")
    if isinstance(target, type) and issubclass(target, Model):
        _check_one(target, pk, options)
    elif pk is not UNSET:
        raise ValueError("pk goes with a model; filter the queryset instead.")
    else:
        refuse_queryset(queryset_of(target, None, using), options)
    return RowLock(target=target, pk=pk, using=using, into=into, wish=options)


def _check_one(model: type[Model], pk: object, options: RowLockOptions) -> None:
    if pk is UNSET:
        raise ValueError(f"row_lock of a model needs pk=; for all its rows lock {model.__name__}.objects.all().")
    if pk is None:
        raise ValueError("pk must not be None: no row has it.")
    if options.skip_locked:
        raise ValueError("skip_locked goes with a queryset; for one row use nowait=True.")
