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
    return [
        _info(alias, row, waiting.get(row.key, ()), beside.get(row.session, ()) if row.session is not None else ())
        for row in held
    ]


def _info(alias: str, row: Row, waiting: Sequence[Row], beside: Sequence[Row]) -> LockInfo:
    details = {**row.details, "also_holds": _other_names(beside, row.key)}
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


def _other_names(held: Sequence[Row], key: str) -> str:
    """The names of the locks of a session without that of ``key``: breaking one of them ends the session, and the
    others are lost with it."""
    names = [readable(row.name or row.key) for row in held[: MOST_NAMED + 1] if row.key != key][:MOST_NAMED]
    more = len(held) - 1 - len(names)
    return ", ".join([*names, f"{more} more"] if more > 0 else names)


def moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else datetime.fromtimestamp(microseconds / 1_000_000, UTC)
