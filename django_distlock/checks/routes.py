"""System check of views: the arguments of their routes must fill the names of their locks."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error
from django.urls import URLPattern, URLResolver, get_resolver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.apps import AppConfig


def check_routes(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report fields of lock names that the route does not give. A decorator cannot find them where
    ``method_decorator`` or ``**kwargs`` hides the signature, and the first request would fail."""
    try:
        patterns = get_resolver().url_patterns
    except Exception:  # no URLconf, or a broken one, which Django's check reports
        return []
    return [
        Error(
            f"The route {route!r} calls {_title(view)}, whose lock {name!r} needs {field!r}. The route gives "
            f"{', '.join(sorted(given)) or 'nothing'}.",
            hint="Name the field as the route names its argument, or take it from the request: {request.user.pk}.",
            id="distlock.E009",
        )
        for route, view, given in _views(patterns, "", frozenset())
        for template in getattr(view, "_distlock_templates", ())
        for name, field in template.unknown({*given, *_arguments(view)})
    ]


def _views(patterns: Any, route: str, given: frozenset[str]) -> Iterator[tuple[str, Any, frozenset[str]]]:
    """Each view with its route and the names of the arguments that the route gives."""
    for entry in patterns:
        names = given | set(entry.pattern.regex.groupindex)
        if isinstance(entry, URLResolver):
            yield from _views(entry.url_patterns, f"{route}{entry.pattern}", names | set(entry.default_kwargs))
        elif isinstance(entry, URLPattern):
            yield f"{route}{entry.pattern}", entry.callback, names | set(entry.default_args or ())


def _arguments(view: Any) -> set[str]:
    """The parameters of ``dispatch`` of a class-based view."""
    kind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if kind is None:
        return set()
    _, *names = inspect.signature(kind.dispatch).parameters
    return set(names)


def _title(view: Any) -> str:
    kind = getattr(view, "view_class", None) or getattr(view, "cls", None) or view
    return f"{kind.__module__}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"
