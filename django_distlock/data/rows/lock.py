"""``row_lock``: rows that are locked to the end of a transaction, with the same meaning on every engine."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from django.db.models import Model

from django_distlock.data.base import DataLock, wrap
from django_distlock.locks.name_templates import follow, known_names, signature_of, values_of
from django_distlock.validation import UNSET, Timeout, Unset

from .fetch import locked_rows
from .select_for_update import M, RowLockOptions, options_of, queryset_of, refuse_queryset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from django.db.models import Manager, QuerySet

R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")


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
        return decorate(function, self.name, self.pk, self.into, lambda pk: replace(self, pk=pk).hold())

    @contextmanager
    def hold(self) -> Iterator[R]:
        """A new block that holds the rows."""
        queryset = queryset_of(self.target, self.pk, self.using)
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
    """Lock rows until the transaction ends: no other transaction can change or lock them.

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
    of it. A row that a join finds several times is given once. After an error of the lock an enclosing ``atomic()``
    is rolled back.
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
    return RowLock(target=target, pk=pk, using=using, into=into, options=options)


def _check_one(model: type[Model], pk: object, options: RowLockOptions) -> None:
    if pk is UNSET:
        raise ValueError(f"row_lock of a model needs pk=; for all its rows lock {model.__name__}.objects.all().")
    if pk is None:
        raise ValueError("pk must not be None: no row has it.")
    if options.skip_locked:
        raise ValueError("skip_locked goes with a queryset; for one row use nowait=True.")


class Arguments:
    """The arguments of a decorated function: ``path`` leads to the primary key, ``into`` gets the rows.

    ValueError for a wrong path, and for an argument that the signature does not have.
    """

    def __init__(self, function: Callable[..., Any], path: str | None, into: str | None) -> None:
        whole = signature_of(function)
        self._name = getattr(function, "__qualname__", repr(function))
        if into is not None:
            self._check_into(whole, into)
        kept = [parameter for name, parameter in whole.parameters.items() if name != into]
        self.outer = whole.replace(parameters=kept)
        self._path = None if path is None else self._checked(path)

    def _check_into(self, whole: inspect.Signature, into: str) -> None:
        kinds = {name: parameter.kind for name, parameter in whole.parameters.items()}
        known = known_names(whole)
        if known is not None and into not in known:
            raise ValueError(f"into is {into!r}, but {self._name!r} has no such argument; it has {_listed(known)}.")
        kind = kinds.get(into, inspect.Parameter.KEYWORD_ONLY)
        later = list(kinds.values())[list(kinds).index(into) + 1 :] if into in kinds else []
        positional = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        if kind is not inspect.Parameter.KEYWORD_ONLY and (kind is not positional[0] or set(positional) & set(later)):
            raise ValueError(
                f"into is {into!r}, which row_lock passes by its name: make it the last argument of {self._name!r}, or "
                "put it behind a *."
            )

    def _checked(self, path: str) -> tuple[str, ...]:
        steps = tuple(path.split("."))
        if not all(step.isidentifier() for step in steps):
            raise ValueError(f"pk must be the name of an argument with a dotted path, not {path!r}.")
        known = known_names(self.outer)
        if known is not None and steps[0] not in known:
            raise ValueError(
                f"pk is {path!r}, but {self._name!r} has no argument {steps[0]!r}; it has {_listed(known)}. "
                "(A primary key that is itself a str is locked with `with`.)"
            )
        return steps

    def pk(self, args: tuple[Any, ...], kwargs: dict[str, Any], default: object) -> Any:
        """The primary key for a call; TypeError if the path cannot be followed."""
        if self._path is None:
            return default
        return follow("row_lock's pk", self._path, values_of(self.outer.bind(*args, **kwargs)))


def decorate(
    function: F, name: str, pk: object, into: str | None, rows_of: Callable[[Any], AbstractContextManager[Any]]
) -> F:
    """Wrap ``function`` so that each call holds ``rows_of(its primary key)``."""

    def hold(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _given(rows_of(arguments.pk(args, kwargs, pk)), into)

    locked = wrap(function, name, hold)
    arguments = Arguments(function, pk if isinstance(pk, str) else None, into)
    if into is not None:
        locked.__signature__ = arguments.outer  # type: ignore[attr-defined]
    return locked


@contextmanager
def _given(held: AbstractContextManager[Any], into: str | None) -> Iterator[Mapping[str, Any]]:
    with held as rows:
        yield {} if into is None else {into: rows}


def _listed(known: list[str] | None) -> str:
    return ", ".join(known or ()) or "none"
