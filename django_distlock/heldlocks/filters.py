"""The filters at the side of the list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from .rows import listed_once

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

    from .rows import Row, Rows


class RowFilter(admin.SimpleListFilter):
    """A choice of values, and what it takes to have each of them."""

    def condition(self, value: str) -> Callable[[Row], bool]:
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None or value not in {choice for choice, _label in self.lookup_choices}:
            return queryset
        rows: Rows = queryset
        return rows.where(self.condition(value))


class AliasFilter(RowFilter):
    title = _("backend")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        aliases = listed_once(request).aliases
        return [(alias, alias) for alias in aliases] if len(aliases) > 1 else []

    def condition(self, value: str) -> Callable[[Row], bool]:
        return lambda row: row.info.backend == value


class ModeFilter(RowFilter):
    title = _("mode")
    parameter_name = "mode"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("exclusive", _("exclusive")), ("shared", _("shared"))]

    def condition(self, value: str) -> Callable[[Row], bool]:
        return lambda row: row.info.shared == (value == "shared")


class WaitersFilter(RowFilter):
    title = _("waiters")
    parameter_name = "waiters"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("somebody waits")), ("no", _("nobody waits"))]

    def condition(self, value: str) -> Callable[[Row], bool]:
        return lambda row: bool(row.info.waiters) == (value == "yes")


class AgeFilter(RowFilter):
    title = _("age")
    parameter_name = "older"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [
            ("10", _("over 10 seconds")),
            ("60", _("over 1 minute")),
            ("600", _("over 10 minutes")),
            ("3600", _("over 1 hour")),
        ]

    def condition(self, value: str) -> Callable[[Row], bool]:
        return lambda row: row.age is not None and row.age > int(value)


class KindFilter(RowFilter):
    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("named", _("named lock")), ("table", _("table")), ("row", _("row lock"))]

    def condition(self, value: str) -> Callable[[Row], bool]:
        return lambda row: row.kind == value
