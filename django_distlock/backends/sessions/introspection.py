"""The locks of sessions as an operator sees them: each with its waiters, and with what else its session holds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from django_distlock.backends.text import readable
from django_distlock.records import MOST_WAITING, LockInfo

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Other locks of a session that a list names.
MOST_NAMED = 10


class Row(NamedTuple):
    """A lock that a session holds or waits for. ``granted`` is None where the server does not show who waits."""

    key: str
    granted: bool | None
    #: None: a prepared transaction holds it.
    session: int | None
    #: The session, described to an operator.
    who: str
    #: The name of the key, as noted.
    name: str | None
    #: Microseconds since 1970.
    since: int | None
    details: Mapping[str, str | None]
    shared: bool = False


def infos(alias: str, rows: Iterable[Row]) -> list[LockInfo]:
    """The held locks. Waiters come in the order of their rows."""
    held: list[Row] = []
    waiting: dict[str, list[Row]] = {}
    beside: dict[int, list[Row]] = {}
    for row in rows:
        if row.granted is False:
            waiting.setdefault(row.key, []).append(row)
            continue
        held.append(row)
        if row.session is not None:
            beside.setdefault(row.session, []).append(row)
    first = {
        session: {row.key: readable(row.name or row.key) for row in there[: MOST_NAMED + 1]}
        for session, there in beside.items()
    }

    def beside_of(row: Row) -> str:
        return "" if row.session is None else _other_names(first[row.session], len(beside[row.session]), row.key)

    return [_info(alias, row, waiting.get(row.key, ()), beside_of(row)) for row in held]


def _info(alias: str, row: Row, waiting: Sequence[Row], also_holds: str) -> LockInfo:
    details = {**row.details, "also_holds": also_holds}
    return LockInfo(
        backend=alias,
        key=row.key,
        name=None if row.name is None else readable(row.name),
        shared=row.shared,
        holder=row.who,
        acquired_at=moment(row.since),
        waiters=None if row.granted is None else len(waiting),
        waiting=tuple(waiter.who for waiter in waiting[:MOST_WAITING]),
        details={key: value for key, value in details.items() if value},
    )


def _other_names(first: Mapping[str, str], held: int, key: str) -> str:
    """The names of the locks of a session without that of ``key``: breaking one of them ends the session, and the
    others are lost with it. ``first`` are some of the names, ``held`` is the number of all."""
    names = [name for other, name in first.items() if other != key][:MOST_NAMED]
    more = held - 1 - len(names)
    return ", ".join([*names, f"{more} more"] if more > 0 else names)


def moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime.fromtimestamp(microseconds / 1_000_000, UTC)
