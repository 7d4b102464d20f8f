"""Lock names with ``{fields}`` that are filled from the arguments of a call."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Set
from string import Formatter
from typing import TYPE_CHECKING, Any

from django.db.models import Model, QuerySet
from django.db.models.manager import BaseManager
from django.utils.functional import Promise

from django_distlock.validation import qualified_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
# In the text of functions, methods, and objects without a text of their own.
_ADDRESS = re.compile(r"\bat 0x[0-9A-Fa-f]{6,}")
# Their text depends on the order of the elements, on the language, or on the first rows of a table; that of a manager
# is the same for all objects.
_WITHOUT_TEXT = (Set, Mapping, Promise, QuerySet, BaseManager)


class NoValue(TypeError):
    """A field is None, or an object that stands for all without a key or login."""


class Template:
    """The names of one decorated function.

    A field is the name of an argument, optionally with a dotted path into it: ``{pk}``, ``{request.user.pk}``. Each
    step of the path is a key of a mapping, else an attribute, else a key. ``{{`` and ``}}`` are literal braces. Raises
    ValueError for anything else, and for a field that is not in the signature.
    """

    def __init__(self, names: Sequence[str], function: Callable[..., Any]) -> None:
        self._parsed = {name: _parse(name) for name in names if "{" in name or "}" in name}
        self._signature: inspect.Signature | None = None
        if self._parsed:
            self._signature = signature_of(function)
            self._check(function)

    def _check(self, function: Callable[..., Any]) -> None:
        """Check the fields against the signature. With ``**kwargs`` in it, they can only be checked at the call."""
        assert self._signature is not None  # noqa: S101 - set by the caller
        known = known_names(self._signature)
        if known is None:
            return
        for name, parts in self._parsed.items():
            for _, path in parts:
                if path and path[0] not in known:
                    raise ValueError(
                        f"The lock name {name!r} has the field {{{'.'.join(path)}}}, but "
                        f"{qualified_name(function)!r} has no argument {path[0]!r}; "
                        f"it has {', '.join(known) or 'none'}."
                    )

    def unknown(self, given: Collection[str]) -> Iterator[tuple[str, str]]:
        """For a signature with ``**kwargs``: (name, field) of each field that is missing in a call with the keyword
        arguments ``given``."""
        if self._signature is None or known_names(self._signature) is not None:
            return
        known = {*given, *(name for name, value in self._signature.parameters.items() if value.kind not in _VARIADIC)}
        for name, parts in self._parsed.items():
            for _, path in parts:
                if path and path[0] not in known:
                    yield name, path[0]

    def fill(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, str]:
        """Map each template to its name in one call; empty if no name has fields.

        TypeError for a field that is missing, and for a value whose text would not name it, such as None.
        """
        if not self._parsed:
            return {}
        assert self._signature is not None  # noqa: S101 - set together with _parsed
        values = values_of(self._signature.bind(*args, **kwargs))
        return {
            name: "".join(
                text + (_text(f"The lock name {name!r}", path, values) if path else "") for text, path in parts
            )
            for name, parts in self._parsed.items()
        }


def known_names(signature: inspect.Signature) -> list[str] | None:
    """The argument names of a signature; None if it has ``**kwargs``, which accepts any name."""
    parameters = signature.parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return [name for name, parameter in parameters.items() if parameter.kind not in _VARIADIC]


def values_of(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Map the arguments of a call to their values, defaults and ``**kwargs`` included."""
    # a copy: the caller may still call with ``bound``
    bound = inspect.BoundArguments(bound.signature, bound.arguments.copy())
    bound.apply_defaults()
    values = dict(bound.arguments)
    extra: Mapping[str, Any] = {}
    for parameter in bound.signature.parameters.values():
        if parameter.kind in _VARIADIC:
            variadic = values.pop(parameter.name)
            extra = variadic if parameter.kind is inspect.Parameter.VAR_KEYWORD else extra
    # `def f(pk, /, **kwargs)` may be called as f(1, pk=2): its argument pk is 1
    return {**extra, **values}


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of the function that is really called.

    A partial made by ``method_decorator`` has ``self`` bound, but its ``__wrapped__`` is the method without it.
    """
    inner = inspect.unwrap(function, stop=lambda f: isinstance(f, functools.partial) or hasattr(f, "__signature__"))
    if isinstance(inner, functools.partial) and not hasattr(inner, "__signature__"):
        return inspect.signature(functools.partial(inner.func, *inner.args, **inner.keywords))
    return inspect.signature(function)


def _parse(name: str) -> list[tuple[str, tuple[str, ...]]]:
    parts: list[tuple[str, tuple[str, ...]]] = []
    try:
        parsed = list(Formatter().parse(name))
    except ValueError as error:
        raise ValueError(f"The lock name {name!r} is no template: {error}. Write {{{{ and }}}} for braces.") from error
    for text, field, spec, conversion in parsed:
        path = tuple(field.split(".")) if field is not None else ()
        if field is not None and (spec or conversion or not all(step.isidentifier() for step in path)):
            raise ValueError(
                f"The lock name {name!r} has the field {{{field}}}; a field is the name of an argument with a dotted "
                "path, without index, format or conversion."
            )
        parts.append((text, path))
    return parts


def follow(what: str, path: tuple[str, ...], values: Mapping[str, Any]) -> Any:
    """The value at the end of a dotted path. If a step is missing, TypeError, whose message begins with ``what``."""
    try:
        value = values[path[0]]
        for step in path[1:]:
            if isinstance(value, Mapping) and step in value:  # its methods have names as well: {payload.items}
                value = value[step]
                continue
            try:
                value = getattr(value, step)
            except AttributeError:
                value = value[step]
    except (KeyError, TypeError, IndexError) as error:
        raise TypeError(f"{what} needs {{{'.'.join(path)}}}, which this call does not have.") from error
    return value


def _text(what: str, path: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """The text of the value at the end of ``path``.

    TypeError if the text may differ between callers who mean one thing, or be the same for callers who do not.
    """
    value = follow(what, path, values)
    if isinstance(value, (str, int)):
        return str(value)
    for each in value if isinstance(value, (list, tuple)) else [value]:
        error, why = _objection(each)
        if why:
            raise error(f"{what} cannot be made from {{{'.'.join(path)}}}: {why}, or make the name in a `with` block.")
    return str(value)


def _objection(value: Any) -> tuple[type[TypeError], str]:
    """Why the text of ``value`` is no name, "" if it is one; and the error."""
    if value is None:
        return NoValue, "it is None, so that all callers without a value would share one lock. Pass a value"
    if _has_no_identity(value):
        why = f"it is {str(value)!r}, so that all callers without a key or login would share one lock. Pass a value"
        return NoValue, why
    if isinstance(value, _WITHOUT_TEXT):
        return TypeError, f"the text of {type(value).__name__} does not say which one it is. Name what identifies it"
    if _ADDRESS.search(text := str(value)):
        why = f"its text is {text!r}, which differs between callers. Name what identifies it, such as its primary key"
        return TypeError, why
    return TypeError, ""


def _has_no_identity(value: Any) -> bool:
    """Is this a model instance without a primary key and without a text of its class, or the anonymous user?"""
    if isinstance(value, Model):
        keys = value.pk if isinstance(value.pk, tuple) else (value.pk,)
        return None in keys and value.__class__.__str__ is Model.__str__
    try:
        return getattr(value, "is_anonymous", False) is True and getattr(value, "pk", None) is None
    except Exception:  # an object with a __getattr__ of its own
        return False
