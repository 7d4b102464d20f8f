"""``row_lock`` above a function: which row a call means, and which argument gets it."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from django_distlock.data.base import wrap
from django_distlock.locks.name_templates import follow, known_names, signature_of, values_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    RowsOf = Callable[[Any], AbstractContextManager[Any]]

F = TypeVar("F", bound="Callable[..., Any]")


class Calls:
    """The calls of one function: ``path`` leads to the primary key, ``into`` is what the caller does not pass.

    Raises ValueError for what is no path, and for an argument that the signature does not have.
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
        """The primary key that a call means; TypeError if the path cannot be followed."""
        if self._path is None:
            return default
        return follow("row_lock's pk", self._path, values_of(self.outer.bind(*args, **kwargs)))


def decorate(function: F, name: str, pk: object, into: str | None, rows_of: RowsOf) -> F:
    """Wrap ``function`` so that each call holds the rows that ``rows_of`` gives for its primary key."""

    def hold(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _given(rows_of(calls.pk(args, kwargs, pk)), into)

    locked = wrap(function, name, hold)
    calls = Calls(function, pk if isinstance(pk, str) else None, into)
    if into is not None:
        locked.__signature__ = calls.outer  # type: ignore[attr-defined]
    return locked


@contextmanager
def _given(held: AbstractContextManager[Any], into: str | None) -> Iterator[Mapping[str, Any]]:
    with held as rows:
        yield {} if into is None else {into: rows}


def _listed(known: list[str] | None) -> str:
    return ", ".join(known or ()) or "none"
