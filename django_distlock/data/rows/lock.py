"""``row_lock``: rows that are locked to the end of a transaction, with the same meaning on every engine."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Unpack, overload

from django.db.models import Manager, Model, QuerySet

from django_distlock.data.base import DataLock, wrap
from django_distlock.locks.name_templates import check_known, follow, signature_of, values_of, without
from django_distlock.validation import UNSET, Timeout, Unset, check_names, qualified_name

from .fetch import M, RowLockOptions, RowOptions, locked_rows, refuse_queryset

if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RowLock(DataLock[R]):
    """What :func:`row_lock` and the methods of a locking manager return: a context manager and a decorator.

    It has no state, so threads can share it.
    """

    target: object
    pk: object
    using: str | None
    into: str | None
    options: RowLockOptions
    name = "row_lock"

    def __repr__(self) -> str:
        return f"row_lock({getattr(self.target, '__name__', type(self.target).__name__)})"

    def __call__(self, function: Callable[..., T]) -> Callable[..., T]:
        """Each call of ``function`` holds the rows. The argument that ``into`` names gets them: callers leave it out,
        which types cannot express."""

        def hold(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[R]:
            if path is None:
                return self.hold()
            pk = follow("row_lock's pk", path, values_of(signature.bind(*args, **kwargs)))
            _check_one(self.target, pk, self.options)
            return replace(self, pk=pk).hold()

        locked = wrap(function, self.name, hold, self.into)
        called = qualified_name(function)
        signature = without(self.into, signature_of(function), called)
        path = _path(self.pk, signature, called) if isinstance(self.pk, str) else None
        if self.into is not None:
            locked.__signature__ = signature  # type: ignore[attr-defined]
        return locked

    @contextmanager
    def hold(self) -> Iterator[R]:
        """A new block that holds the rows."""
        queryset = _queryset(self.target, self.pk, self.using)
        with locked_rows(queryset, self.options) as rows:
            if self.pk is UNSET:
                yield rows  # type: ignore[misc]
                return
            if rows:
                yield rows[0]
                return
        # not inside the block: no row is locked, so an enclosing transaction may go on
        raise queryset.model.DoesNotExist(f"{queryset.model._meta.object_name} matching query does not exist.")


@overload
def row_lock(
    target: type[M], *, pk: object, into: str | None = ..., using: str | None = ..., **options: Unpack[RowOptions]
) -> RowLock[M]: ...


@overload
def row_lock(
    target: QuerySet[M] | Manager[M],
    *,
    skip_locked: bool = ...,
    into: str | None = ...,
    using: str | None = ...,
    **options: Unpack[RowOptions],
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
    """Lock rows until the transaction ends: no other transaction can change or lock them.

    ``with row_lock(Account.objects.filter(pk__in=[7, 3])) as accounts`` opens a transaction (or uses the one that is
    open, without a savepoint) and gives the list of instances, locked and sorted by primary key, so that two callers
    with the same rows cannot wait for each other. ``with row_lock(Account, pk=7) as account`` gives one instance, or
    raises the model's ``DoesNotExist``. As a decorator a ``pk`` that is a string is the name of an argument of the call
    with a dotted path, and ``into`` the argument that gets the instance (or the list).

    ``timeout`` is in seconds, 0 (the same as ``nowait``) does not wait, None waits for ever, the default is 10 s.
    ``skip_locked`` leaves out the rows that are locked. ``of`` and ``no_key`` as for Django's ``select_for_update``;
    an engine without them takes the stronger lock. SQLite locks the whole database against writers.

    Raises LockNotAcquired or LockTimeout (busy), DeadlockDetected, UnsupportedOperation (rows that the engine cannot
    lock, as those of a nullable relation on PostgreSQL; a MySQL table without transactions), ValueError for a queryset
    that gives no instances. A row that a join finds several times is given once. After an error of the lock an
    enclosing ``atomic()`` is rolled back.
    """
    options = RowLockOptions(timeout=timeout, nowait=nowait, skip_locked=skip_locked, of=of, no_key=no_key)
    check_names(into=into, using=using)
    if isinstance(target, type) and issubclass(target, Model):
        _check_one(target, pk, options)
    elif pk is not UNSET:
        raise ValueError("pk goes with a model; filter the queryset instead.")
    else:
        refuse_queryset(_queryset(target, None, using), options)
    return RowLock(target=target, pk=pk, using=using, into=into, options=options)


def _queryset(target: object, pk: object, using: str | None) -> QuerySet[Any]:
    if isinstance(target, type) and issubclass(target, Model):
        queryset = target._default_manager.filter(pk=pk)
    elif isinstance(target, (QuerySet, Manager)):
        queryset = target.all()
    else:
        raise TypeError(f"row_lock takes a queryset, or a model and pk=, not {target!r}.")
    return queryset.using(using) if using is not None else queryset


def _check_one(model: Any, pk: object, options: RowLockOptions) -> None:
    if pk is UNSET:
        raise ValueError(f"row_lock of a model needs pk=; for all its rows lock {model.__name__}.objects.all().")
    if pk is None or (isinstance(pk, tuple) and None in pk):
        raise ValueError("pk must not be None: no row has it.")
    if options.skip_locked:
        raise ValueError("skip_locked goes with a queryset; for one row use nowait=True.")


def _path(pk: str, signature: inspect.Signature, called: str) -> tuple[str, ...]:
    """The path to the primary key in the arguments of a call."""
    steps = tuple(pk.split("."))
    if not all(step.isidentifier() for step in steps):
        raise ValueError(f"pk must be the name of an argument with a dotted path, not {pk!r}.")
    hint = " (A primary key that is itself a str is locked with `with`.)"
    check_known(f"pk is {pk!r}", steps[0], signature, called, hint)
    return steps
