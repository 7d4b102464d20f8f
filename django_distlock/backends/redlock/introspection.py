"""The locks on all nodes together, and taking one away on all of them. redis-py's client asks."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from django_distlock.backends.redis.introspection import break_request, listed_at
from django_distlock.exceptions import BackendUnavailable

from .attempt import PREFIX
from .quorum import majority
from .round import kind_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from django_distlock.backends.redis.target import Target
    from django_distlock.records import LockInfo

T = TypeVar("T")


def listed(targets: Sequence[Target], alias: str, wanted: Iterable[str] | None, patience: float) -> list[LockInfo]:
    """Every lock that any node knows, or those of the ``wanted`` keys. BackendUnavailable if too few nodes answer."""
    copies: dict[tuple[str, str], list[LockInfo]] = {}
    for infos in _asked(targets, patience, partial(listed_at, alias=alias, wanted=wanted, prefix=PREFIX)):
        for info in infos:
            copies.setdefault((info.key, info.details.get("token", "")), []).append(info)
    return [_merged(found, len(targets)) for found in copies.values()]


def _merged(copies: list[LockInfo], nodes: int) -> LockInfo:
    line = max(copies, key=lambda copy: copy.waiters or 0)  # waiters queue at one node, which may have changed
    # when a majority will have let it go cannot be told from fewer
    last = max((copy.expires_at for copy in copies if copy.expires_at is not None), default=None)
    details = {**line.details, "nodes": f"{len(copies)} of {nodes}"}
    return replace(line, fence=None, expires_at=last, details=details)


def broken(targets: Sequence[Target], info: LockInfo, patience: float) -> bool:
    """Delete the lock that ``info`` shows on all nodes. False if none has it. BackendUnavailable if too few answer."""
    return any(_asked(targets, patience, partial(_broken_at, info=info)))


def _broken_at(client: Any, info: LockInfo) -> bool:
    """Each node has drawn a fence of its own, which names the holder in full."""
    done = False
    for copy in listed_at(client, info.backend, [info.key], prefix=PREFIX):
        if copy.details.get("token", "") == info.details.get("token", ""):
            request = break_request(copy, PREFIX)
            done |= client.eval(request.script.text, len(request.keys), *request.keys, *request.args) == 1
    return done


def _asked(targets: Sequence[Target], patience: float, work: Callable[[Any], T]) -> list[T]:
    def ask(target: Target) -> tuple[T] | Exception:
        try:
            with target.client(patience) as client:
                return (work(client),)
        except Exception as error:  # of the socket or of redis-py
            return error

    with ThreadPoolExecutor(len(targets)) as pool:
        answers = list(pool.map(ask, targets))
    found = [answer[0] for answer in answers if isinstance(answer, tuple)]
    if len(found) < majority(len(targets)):
        failed = next(answer for answer in answers if isinstance(answer, Exception))
        text = f"{len(targets) - len(found)} of {len(targets)} Redis nodes failed"
        raise BackendUnavailable(f"{text} ({kind_of(failed)}).") from failed
    return found
