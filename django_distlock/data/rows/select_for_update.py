"""Makes the ``SELECT ... FOR UPDATE`` that locks rows, in the order of the primary key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from django.db import connections
from django.db.models import Manager, Model, QuerySet
from django.db.models.query import ModelIterable
from django.db.models.sql.constants import LOUTER

from django_distlock.data.timeouts import resolve
from django_distlock.validation import UNSET, Timeout, flag

if TYPE_CHECKING:
    from collections.abc import Sequence

M = TypeVar("M", bound=Model)


class RowOptions(TypedDict, total=False):
    """The options of every lock on rows, for ``**options``: all may be left out."""

    timeout: Timeout
    nowait: bool
    of: Sequence[str]
    no_key: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLockOptions:
    """How rows are locked. ``timeout`` 0 is ``nowait``."""

    timeout: float | None
    skip_locked: bool
    of: tuple[str, ...]
    no_key: bool

    @property
    def waits(self) -> bool:
        return self.timeout != 0


def options_of(
    timeout: Timeout = UNSET,
    *,
    nowait: bool = False,
    skip_locked: bool = False,
    of: Sequence[str] = (),
    no_key: bool = False,
) -> RowLockOptions:
    """Check the options. ValueError or TypeError that names the argument."""
    seconds = resolve(timeout, nowait=nowait, skip_locked=skip_locked)
    if nowait and skip_locked:
        raise ValueError("nowait and skip_locked exclude each other.")
    if not isinstance(of, (tuple, list)) or not all(isinstance(name, str) for name in of):
        raise TypeError(f'of must be a tuple of relation names such as ("self",), not {of!r}.')
    return RowLockOptions(timeout=seconds, skip_locked=skip_locked, of=tuple(of), no_key=flag("no_key", no_key))


def queryset_of(target: object, pk: object, using: str | None) -> QuerySet[Any]:
    """The target of ``row_lock`` as a queryset on the database that is written."""
    if isinstance(target, type) and issubclass(target, Model):
        queryset = target._default_manager.filter(pk=pk)
    elif isinstance(target, (QuerySet, Manager)):
        queryset = target.all()
    else:
        raise TypeError(f"row_lock takes a queryset, or a model and pk=, not {target!r}.")
    return queryset.using(using) if using is not None else queryset


def refuse_queryset(queryset: QuerySet[Any], options: RowLockOptions) -> None:
    """ValueError for a queryset that cannot be locked row by row, in the order of the primary key."""
    query = queryset.query
    name = queryset.model._meta.label
    if query.combinator:
        raise ValueError(f"row_lock cannot lock the rows of a {query.combinator}: lock {name} by pk__in=... instead.")
    if queryset._fields is not None or not issubclass(queryset._iterable_class, ModelIterable):  # type: ignore[attr-defined]
        raise ValueError("row_lock gives instances: leave out values(), values_list(), dates() and datetimes().")
    if query.distinct:
        raise ValueError(f"row_lock cannot lock distinct rows: filter {name} by pk__in=queryset.values('pk') instead.")
    if query.group_by is not None or any(
        getattr(annotation, "contains_over_clause", False) for annotation in query.annotations.values()
    ):
        raise ValueError(
            "row_lock cannot lock rows that stand for groups or windows: leave out aggregates and windows, or "
            f"filter {name} by pk__in=queryset.values('pk')."
        )
    if query.is_sliced and options.waits and not _by_primary_key(queryset):
        raise ValueError(
            "row_lock waits for the rows of a slice only if it is ordered by pk, else two callers could wait for each "
            "other: add skip_locked=True, nowait=True or order_by('pk')."
        )


def _by_primary_key(queryset: QuerySet[Any]) -> bool:
    query, pk = queryset.query, queryset.model._meta.pk
    own = query.order_by or (queryset.model._meta.ordering if query.default_ordering else ())
    names = {"pk", pk.name, pk.attname} if pk is not None else {"pk"}
    return query.standard_ordering and len(own) == 1 and own[0] in names and not query.extra_order_by


def locking(queryset: QuerySet[M], options: RowLockOptions) -> QuerySet[M]:
    """The queryset that locks. Where the engine lacks a weaker lock, the plain one is taken, which is stronger.

    A slice keeps its order: it does not wait for rows, or it is ordered by primary key.
    """
    refuse_queryset(queryset, options)
    refuse_joins(queryset, options.of)
    locked = queryset.select_for_update()
    features = connections[locked.db].features
    if features.has_select_for_update:
        locked = locked.select_for_update(
            nowait=not options.waits and not options.skip_locked,
            skip_locked=options.skip_locked,
            of=options.of if features.has_select_for_update_of else (),
            no_key=options.no_key and features.has_select_for_no_key_update,
        )
    if not locked.query.is_sliced:
        locked = locked.order_by("pk")
        locked.query.standard_ordering = True  # an earlier reverse() would reverse this order
    return locked


def refuse_joins(queryset: QuerySet[Any], of: tuple[str, ...]) -> None:
    """ValueError for rows that an outer join may not find, on every engine, because PostgreSQL cannot lock them.
    FieldError for a name that is no relation of the query. Only queries that may have joins are examined."""
    query: Any = queryset.query
    if not (of or query.select_related or query.is_sliced or len(query.alias_map) > 1):
        return
    compiler = query.chain().get_compiler(queryset.db)
    compiler.pre_sql_setup()
    query = compiler.query
    outer = {
        alias: join.table_name
        for alias, join in query.alias_map.items()
        if query.alias_refcount[alias] and getattr(join, "join_type", None) == LOUTER
    }
    if of:
        query.select_for_update_of = of
        locked, quote = set(compiler.get_select_for_update_of_arguments()), compiler.connection.ops.quote_name
        outer = {alias: table for alias, table in outer.items() if locked & {alias, quote(alias)}}
    if outer:
        raise ValueError(
            f"row_lock cannot lock the rows of {', '.join(sorted(set(outer.values())))} that this query of "
            f"{queryset.model._meta.label} may not find (a nullable relation): say which rows to lock, "
            "of=('self',), or leave the relation out."
        )
