"""``table_lock``: locks on whole tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import connections, models, router

from django_distlock.data.base import DataLock, F, held, wrap
from django_distlock.data.timeouts import resolve
from django_distlock.exceptions import UnsupportedOperation
from django_distlock.validation import UNSET, Timeout, check_names

from . import mysql, postgres, sqlite
from .modes import WEAK, Table, TableLockMode, validate_mode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from django.db.backends.base.base import BaseDatabaseWrapper

Model = type[models.Model]
ENGINES = {"postgresql": postgres.lock, "mysql": mysql.lock, "sqlite": sqlite.lock}
# The ORM's aliases of a table that a query uses twice (T) or in a subquery (U, and V in a subquery of that):
# django.db.models.sql.query.Query.table_alias and bump_prefix.
ORM_ALIASES = ("T2", "T3", "T4", "T5", "U0", "U1", "U2", "U3", "V0", "V1")


class table_lock(DataLock[None]):
    """Lock the tables of ``models``: ``with table_lock(Account):`` or ``@table_lock(Account)``.

    ``mode`` is "write" (no other transaction writes or locks), "read" (no transaction writes) or the name of one of
    PostgreSQL's eight modes; ``read`` and ``write`` name models for these modes. With a model its parents by
    multi-table inheritance are locked; the model of a many-to-many table is ``Student.courses.through``.

    PostgreSQL and SQLite: inside ``atomic()`` the lock is held to the end of that transaction, else the block is a
    transaction. MySQL and MariaDB: the block is always a transaction, and the lock is refused inside ``atomic()``.
    There every table and alias that the block uses must be locked; ``aliases`` ({Model: ["T6"]}) adds aliases to those
    that the ORM makes for the first model.

    ``using`` is the database, by default the one that the router writes the models to. ``timeout`` is in seconds: 10 if
    unset, 0 and ``nowait`` do not wait, None waits for ever. Oracle's MySQL rounds up to whole seconds.

    Raises LockNotAcquired (if it may not wait), LockTimeout, DeadlockDetected, UnsupportedOperation (what the engine
    cannot do, and LOCK TABLES inside ``atomic()``), LockLost (the connection was closed inside the block, and its
    writes are rolled back; MySQL and MariaDB: a statement of the block has ended its transaction), BackendUnavailable.
    Source: https://www.postgresql.org/docs/current/sql-lock.html,
    https://dev.mysql.com/doc/refman/8.4/en/lock-tables.html, https://sqlite.org/lang_transaction.html
    """

    name = "table_lock"

    def __init__(
        self,
        *models: Model,
        mode: str | TableLockMode = TableLockMode.WRITE,
        read: Iterable[Model] = (),
        write: Iterable[Model] = (),
        aliases: Mapping[Model, Sequence[str]] | None = None,
        using: str | None = None,
        timeout: Timeout = UNSET,
        nowait: bool = False,
    ) -> None:
        groups = (("models", models, mode), ("read", read, "read"), ("write", write, "write"))
        named = [(model, validate_mode(kind)) for name, group, kind in groups for model in _models(name, group)]
        if not named:
            raise ValueError("table_lock needs at least one model.")
        if len({model._meta.concrete_model for model, _ in named}) < len(named):
            raise ValueError("A model is named twice; write includes read.")
        check_names(using=using)
        self.wanted = dict(named)
        self.aliases = dict(aliases or {})
        for model in _models("aliases", self.aliases):
            names = self.aliases[model]
            if isinstance(names, str) or not all(isinstance(name, str) and name.isidentifier() for name in names):
                raise ValueError(f"aliases[{model.__name__}] must be a list of names such as 'T6', not {names!r}.")
        self.using = using
        self.timeout = resolve(timeout, nowait=nowait)

    def __repr__(self) -> str:
        return f"table_lock({', '.join(model.__name__ for model in self.wanted)})"

    def hold(self) -> AbstractContextManager[None]:
        """A new block that holds the lock."""
        connection = connections[self._database()]
        if (lock := ENGINES.get(connection.vendor)) is None:
            raise UnsupportedOperation(f"table_lock does not know how to lock a table of {connection.vendor}.")
        if connection.vendor != "postgresql" and (odd := WEAK & {*self.wanted.values()}):
            raise UnsupportedOperation(f"{connection.display_name} has no lock like {min(odd)}: use read or write.")
        tables = tables_of(connection, self.wanted, self.aliases)
        return held(connection, lambda stack: lock(stack, connection, tables, self.timeout))

    def __call__(self, function: F) -> F:
        """Decorate a function, a method or a view: each call holds the lock while it runs."""
        return wrap(function, self.name, lambda args, kwargs: self.hold())

    def _database(self) -> str:
        if self.using is not None:
            return self.using
        found = {router.db_for_write(model) for model in self.wanted}
        if len(found) > 1:
            names = ", ".join(sorted(found))
            raise ValueError(f"The models are written to several databases ({names}); a table lock belongs to one.")
        return found.pop()


def _models(argument: str, given: Iterable[Model]) -> Iterator[Model]:
    """Models that have a table; TypeError or ValueError that names the argument."""
    if isinstance(given, (str, type)):
        raise TypeError(f"{argument} must be a list of model classes, not {given!r}.")
    for model in given:
        if not (isinstance(model, type) and issubclass(model, models.Model)):
            raise TypeError(f"{argument} must be model classes, not {model!r}.")
        if model is models.Model or model._meta.abstract or model._meta.swapped:
            raise ValueError(f"{argument}: {model.__name__} has no table.")
        yield model


def tables_of(
    connection: BaseDatabaseWrapper, wanted: Mapping[Model, TableLockMode], aliases: Mapping[Model, Sequence[str]]
) -> list[Table]:
    """The tables of the models and of their parents by multi-table inheritance, each once. All callers get the same
    order, so that no two can wait for each other (R9)."""
    found, quote = dict[str, Table](), connection.ops.quote_name
    for model, mode in wanted.items():
        for part in (model, *model._meta.concrete_model._meta.get_parent_list()):  # type: ignore[union-attr]
            name = quote(part._meta.db_table)  # with its schema if it has one
            known = found.setdefault(name, Table(name, mode))
            known.mode = _both(known.mode, mode)
    for model, names in aliases.items():
        name = quote(model._meta.db_table)
        if name not in found:
            raise ValueError(f"aliases: {model.__name__} is not among the models that are locked.")
        found[name].aliases += tuple(names)
    taken = {alias for names in aliases.values() for alias in names}
    first = next(iter(found.values()))  # an alias belongs to one table
    first.aliases += tuple(alias for alias in ORM_ALIASES if alias not in taken)
    return [found[name] for name in sorted(found)]


def _both(one: TableLockMode, other: TableLockMode) -> TableLockMode:
    """The weakest mode that excludes what both exclude."""
    weak, strong = sorted((one, other), key=list(TableLockMode).index)
    if strong is TableLockMode.SHARE and weak in (TableLockMode.ROW_EXCLUSIVE, TableLockMode.SHARE_UPDATE_EXCLUSIVE):
        return TableLockMode.SHARE_ROW_EXCLUSIVE
    return strong
