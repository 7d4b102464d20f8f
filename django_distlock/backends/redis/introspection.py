"""The holders and waiters of locks, as an operator sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_distlock.backends.holders import UNKNOWN, facts_of, moment_of, who_of
from django_distlock.records import MOST_WAITING, LockInfo

from .scripts import BREAK, HELD, LOOK, PREFIX, Request, keys_of
from .servers import slot_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .servers import Servers

_SCANNED, _AT_ONCE = 500, 100


def listed(servers: Servers, alias: str, wanted: Iterable[str] | None, patience: float) -> list[LockInfo]:
    """The locks that are held, or those of the ``wanted`` keys. ConnectionFailed; a reply has ``patience`` seconds."""
    found: list[LockInfo] = []
    for target, slots in servers.primaries(patience):
        with target.client(patience) as client:
            found += listed_at(client, alias, wanted, slots)
    return found


def listed_at(
    client: Any, alias: str, wanted: Iterable[str] | None, slots: list[range] | None = None, prefix: bytes = PREFIX
) -> list[LockInfo]:
    """The same at one server, whose keys begin with ``prefix``."""
    replies = _replies(client, slots, wanted, prefix)
    return [info for text, reply in replies for info in _infos(alias, text, reply)]


def _replies(
    client: Any, slots: list[range] | None, wanted: Iterable[str] | None, prefix: bytes
) -> Iterator[tuple[bytes, Any]]:
    """What the script LOOK says of each lock in these slots; an error if its key is of another type."""
    if wanted is None:
        found = client.scan_iter(match=prefix + b"*" + HELD, count=_SCANNED)
        texts = {key[len(prefix) : -len(HELD)] for key in found}
    else:
        texts = {key.encode("latin-1", "replace") for key in wanted}
    if slots is not None:
        texts = {text for text in texts if any(slot_of(keys_of(text)[0]) in part for part in slots)}
    names = sorted(texts)
    for at in range(0, len(names), _AT_ONCE):
        part = names[at : at + _AT_ONCE]
        pipeline = client.pipeline(transaction=False)
        pipeline.eval(LOOK.text, 4, *keys_of(part[0], prefix), MOST_WAITING)  # the server keeps it for the others
        for text in part[1:]:
            pipeline.evalsha(LOOK.sha, 4, *keys_of(text, prefix), MOST_WAITING)
        yield from zip(part, pipeline.execute(raise_on_error=False), strict=True)


def _infos(alias: str, text: bytes, reply: Any) -> Iterator[LockInfo]:
    """The holders of one lock, from the reply of the script LOOK."""
    key = text.decode("latin-1")
    if isinstance(reply, Exception):
        yield LockInfo(backend=alias, key=key, holder=UNKNOWN)
        return
    holders, waiters, waiting = reply
    for holder, end, value in sorted(holders):
        facts = facts_of(value.partition(b" ")[2])
        name, fence = facts.get("name"), facts.get("fence")
        yield LockInfo(
            backend=alias,
            key=key,
            name=name if isinstance(name, str) else None,
            shared=holder[:1] == b"s",
            holder=who_of(facts),
            acquired_at=moment_of(facts.get("since")),
            expires_at=moment_of(end * 1000),
            fence=fence if isinstance(fence, int) else None,
            waiters=waiters,
            waiting=tuple(who_of(facts_of(each)) for each in waiting),
            details={"token": holder[1:9].decode("latin-1")},
        )


def break_request(info: LockInfo, prefix: bytes = PREFIX) -> Request:
    """Take the lock away from the holder that ``info`` shows. The reply is 0 if that holder has gone."""
    token = info.details.get("token", "").encode("latin-1", "replace")
    return Request(BREAK, keys_of(info.key.encode("latin-1", "replace"), prefix), info.fence or 0, token)
