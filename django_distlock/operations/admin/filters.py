"""The filters at the side of the list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from django_distlock.operations.lookup import aliases

from .rows import KINDS

if TYPE_CHECKING:
    from django.http import HttpRequest

    from .rows import Rows

_KINDS = {shown: kind for kind, shown in KINDS.items()} | {"named": "named"}


class RowFilter(admin.SimpleListFilter):
    """A choice of values, and what each of them asks of LockQuery."""

    def narrowed(self, rows: Rows, value: str) -> Rows:
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None or value not in {choice for choice, _label in self.lookup_choices}:
            return queryset
        return self.narrowed(queryset, value)


class AliasFilter(RowFilter):
    title = _("backend")
    parameter_name = "using"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        every = aliases()
        return [(alias, alias) for alias in every] if len(every) > 1 else []

    def narrowed(self, rows: Rows, value: str) -> Rows:
        return rows.of(value)


class ModeFilter(RowFilter):
    title = _("mode")
    parameter_name = "mode"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("exclusive", _("exclusive")), ("shared", _("shared"))]

    def narrowed(self, rows: Rows, value: str) -> Rows:
        return rows.having(shared=value == "shared")


class WaitersFilter(RowFilter):
    title = _("waiters")
    parameter_name = "waiters"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("yes", _("somebody waits")), ("no", _("no waiter is seen"))]

    def narrowed(self, rows: Rows, value: str) -> Rows:
        return rows.having(awaited=value == "yes")


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

    def narrowed(self, rows: Rows, value: str) -> Rows:
        return rows.having(older=float(value))


class KindFilter(RowFilter):
    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return [("named", _("named lock")), ("table", _("table")), ("row", _("row lock"))]

    def narrowed(self, rows: Rows, value: str) -> Rows:
        return rows.having(kind=_KINDS[value])
