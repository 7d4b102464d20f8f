"""The holders and waiters of locks, as an operator sees them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django_distlock.concurrency import clock
from django_distlock.records import MOST_WAITING, LockInfo

from .commands import BREAK, HELD, LOOK, PREFIX, Refused, converse, keys_named, unknown_script
from .connection import pack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .connection import Connection, Pool

UNKNOWN = "unknown"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCANNED = 500
_AT_ONCE = 100
_LOOKED_FOR = (MOST_WAITING,)


def text_of(key: bytes) -> bytes | None:
    """The lock's part of the key of its holders; None if ``key`` is another one."""
    if key.startswith(PREFIX) and key.endswith(HELD):
        return key[len(PREFIX) : -len(HELD)]
    return None


def infos(alias: str, text: bytes, reply: list[Any]) -> list[LockInfo]:
    """The holders of one lock, from the reply of the script LOOK."""
    holders, waiters, waiting = reply
    who = tuple(who_of(facts_of(said)) for said in waiting)
    return [
        _info(alias, text, holder, end, value.partition(b" ")[2], waiters, who)
        for holder, end, value in sorted(holders)
    ]


def _info(
    alias: str, text: bytes, holder: bytes, end: int, said: bytes, waiters: int, waiting: tuple[str, ...]
) -> LockInfo:
    facts = facts_of(said)
    name, fence, since = facts.get("name"), facts.get("fence"), facts.get("since")
    return LockInfo(
        backend=alias,
        key=text.decode("latin-1"),
        name=name if isinstance(name, str) else None,
        shared=holder[:1] == b"s",
        holder=who_of(facts),
        acquired_at=moment_of(since),
        expires_at=moment_of(end * 1000),
        fence=fence if isinstance(fence, int) else None,
        waiters=waiters,
        waiting=waiting,
        details={"token": holder[1:9].decode("latin-1")},
    )


def who_of(facts: dict[str, Any]) -> str:
    """Describe a holder or waiter to an operator."""
    who = [facts.get(part) for part in ("host", "pid", "thread")]
    return UNKNOWN if None in who else ":".join(map(str, who))


def facts_of(said: bytes) -> dict[str, Any]:
    """The facts of a :class:`~.commands.HolderInfo`; none if they cannot be read."""
    try:
        facts = json.loads(said)
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def moment_of(microseconds: object) -> datetime | None:
    """The time; None if ``microseconds`` is none."""
    if not isinstance(microseconds, int):
        return None
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return None


async def listed(pool: Pool, alias: str, patience: float, wanted: Iterable[str] | None = None) -> list[LockInfo]:
    """The locks that are held on the server of ``pool``, or those of the ``wanted`` keys. ConnectionFailed if a reply
    takes ``patience`` seconds."""
    connection = await pool.get(clock.now() + patience)
    found: list[LockInfo] = []
    try:
        if wanted is None:
            texts = await _scanned(connection, patience)
        else:
            texts = {key.encode("latin-1", "replace") for key in wanted}
        names = sorted(texts)
        for at in range(0, len(names), _AT_ONCE):
            found += await _looked(alias, connection, names[at : at + _AT_ONCE], patience)
    except BaseException:
        pool.discard(connection)
        raise
    pool.give(connection)
    return found


async def _scanned(connection: Connection, patience: float) -> set[bytes]:
    cursor, texts = b"0", set[bytes]()
    while True:
        connection.send(pack("SCAN", cursor, "MATCH", PREFIX + b"*" + HELD, "COUNT", _SCANNED))
        reply = await connection.areceive(clock.now() + patience)
        if isinstance(reply, Exception):
            raise Refused(f"Redis refused: {reply}") from reply
        cursor = reply[0]
        texts.update(text for text in map(text_of, reply[1]) if text is not None)
        if cursor == b"0":
            return texts


async def _looked(alias: str, connection: Connection, texts: list[bytes], patience: float) -> list[LockInfo]:
    """Ask for all ``texts`` before the first reply is read."""
    connection.send(*(LOOK.by_hash(keys_named(text), *_LOOKED_FOR) for text in texts))
    replies = []
    for _ in texts:
        replies.append(await connection.areceive(clock.now() + patience))
    found: list[LockInfo] = []
    for text, reply in zip(texts, replies, strict=True):
        try:
            if unknown_script(reply):
                reply = await converse(connection, LOOK, keys_named(text), _LOOKED_FOR, clock.now() + patience)
            if isinstance(reply, Exception):
                raise Refused(str(reply))
        except Refused:  # the key is of another type
            found.append(LockInfo(backend=alias, key=text.decode("latin-1"), holder=UNKNOWN))
        else:
            found += infos(alias, text, reply)
    return found


async def broken(pool: Pool, info: LockInfo, until: float) -> bool:
    """Take the lock away from the holder that ``info`` shows; False if that holder has gone."""
    connection = await pool.get(until)
    try:
        keys = keys_named(info.key.encode("latin-1"))
        known = (info.fence or 0, info.details.get("token", "").encode("latin-1", "replace"))
        return bool(await converse(connection, BREAK, keys, known, until))
    finally:
        pool.give(connection)
