"""The signature of a decorated function: lock names with ``{fields}`` that are filled from the arguments of a call, and
the argument ``into`` that the decorator passes."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Set
from inspect import Parameter
from string import Formatter
from typing import TYPE_CHECKING, Any

from django.db.models import Model, QuerySet
from django.db.models.manager import BaseManager
from django.utils.functional import Promise

from django_distlock.validation import qualified_name

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    Path = tuple[str, ...]

_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
# The kinds of arguments that can only be passed by name.
_BY_NAME = (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD)
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
    ValueError for anything else, for a field that is not in the signature, and for ``into`` if no such argument can be
    passed by name. Callers leave ``into`` out: it is no field.
    """

    def __init__(self, names: Sequence[str], function: Callable[..., Any], into: str | None = None) -> None:
        self._parsed = {name: _parse(name) for name in names if "{" in name or "}" in name}
        if not self._parsed and into is None:
            return
        called = qualified_name(function)
        #: The signature for callers.
        self.signature = without(into, signature_of(function), called)
        for name, path in self._fields():
            what = f"The lock name {name!r} has the field {{{'.'.join(path)}}}"
            check_known(what, path[0], self.signature, called)

    def _fields(self) -> Iterator[tuple[str, Path]]:
        return ((name, path) for name, parts in self._parsed.items() for _, path in parts if path)

    def unknown(self, given: Collection[str]) -> Iterator[tuple[str, str]]:
        """(name, field) of each field that is missing in a call with the keyword arguments ``given``: there are some
        only with ``**kwargs``, whose fields cannot be checked before."""
        for name, path in self._fields():
            if path[0] not in {*given, *_named(self.signature)}:
                yield name, path[0]

    def fill(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, str]:
        """Map each template to its name in one call; empty if no name has fields.

        TypeError for a field that is missing, and for a value whose text would not name it, such as None.
        """
        if not self._parsed:
            return {}
        values = values_of(self.signature.bind(*args, **kwargs))
        return {
            name: "".join(
                text + (_text(f"The lock name {name!r}", path, values) if path else "") for text, path in parts
            )
            for name, parts in self._parsed.items()
        }


def _named(signature: inspect.Signature) -> list[str]:
    return [name for name, parameter in signature.parameters.items() if parameter.kind not in _VARIADIC]


def check_known(what: str, name: str, signature: inspect.Signature, called: str, hint: str = "") -> None:
    """ValueError, which begins with ``what``, unless ``called`` accepts the argument ``name``."""
    known, kinds = _named(signature), {parameter.kind for parameter in signature.parameters.values()}
    if name not in known and Parameter.VAR_KEYWORD not in kinds:
        raise ValueError(f"{what}, but {called!r} has no argument {name!r}; it has {', '.join(known) or 'none'}.{hint}")


def without(into: str | None, signature: inspect.Signature, called: str) -> inspect.Signature:
    """The signature for callers, who leave out ``into``. ValueError unless ``into`` can be passed by its name, whatever
    the caller passes by position."""
    if into is None:
        return signature
    check_known(f"into is {into!r}", into, signature, called)
    names, parameters = list(signature.parameters), list(signature.parameters.values())
    kind, *later = [parameter.kind for parameter in parameters[names.index(into) :]] if into in names else [*_BY_NAME]
    if kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY) or not {*later} <= {*_BY_NAME}:
        raise ValueError(
            f"into is {into!r}, which is passed by its name: make it the last argument of {called!r}, or put it behind "
            "a *."
        )
    return signature.replace(parameters=[parameter for parameter in parameters if parameter.name != into])


def values_of(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Map the arguments of a call to their values, defaults and ``**kwargs`` included."""
    bound.apply_defaults()
    values = dict(bound.arguments)
    extra: Mapping[str, Any] = {}
    for parameter in bound.signature.parameters.values():
        if parameter.kind in _VARIADIC:
            variadic = values.pop(parameter.name)
            extra = variadic if parameter.kind is Parameter.VAR_KEYWORD else extra
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


def _parse(name: str) -> list[tuple[str, Path]]:
    parts: list[tuple[str, Path]] = []
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


def follow(what: str, path: Path, values: Mapping[str, Any]) -> Any:
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


def _text(what: str, path: Path, values: Mapping[str, Any]) -> str:
    """The text of the value at the end of ``path``.

    TypeError if the text may differ between callers who mean one thing, or be the same for callers who do not.
    """
    value = follow(what, path, values)
    if isinstance(value, (str, int)):
        return str(value)
    for each in value if isinstance(value, (list, tuple)) else [value]:
        if (found := _objection(each)) is not None:
            error, why = found
            raise error(f"{what} cannot be made from {{{'.'.join(path)}}}: {why}, or make the name in a `with` block.")
    return str(value)


def _objection(value: Any) -> tuple[type[TypeError], str] | None:
    """Why the text of ``value`` is no name, and the error; None if it is one."""
    if value is None or _has_no_identity(value):
        shown = "None" if value is None else repr(str(value))
        return NoValue, f"it is {shown}, so that all callers without a value would share one lock. Pass a value"
    if isinstance(value, _WITHOUT_TEXT):
        return TypeError, f"the text of {type(value).__name__} does not say which one it is. Name what identifies it"
    if _ADDRESS.search(text := str(value)):
        why = f"its text is {text!r}, which differs between callers. Name what identifies it, such as its primary key"
        return TypeError, why
    return None


def _has_no_identity(value: Any) -> bool:
    """Is this a model instance without a primary key and without a text of its class, or the anonymous user?"""
    if isinstance(value, Model):
        keys = value.pk if isinstance(value.pk, tuple) else (value.pk,)
        return None in keys and value.__class__.__str__ is Model.__str__
    try:
        return getattr(value, "is_anonymous", False) is True and getattr(value, "pk", None) is None
    except Exception:  # an object with a __getattr__ of its own
        return False
