"""What `distlock doctor` asks the nodes of Redlock. They are told apart by their numbers: an address may hold a
password."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from django_distlock.backends.redis.doctor import Facts, facts, of_server
from django_distlock.backends.redis.target import ClusterNode
from django_distlock.records import Finding

from .quorum import majority

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_distlock.backends.redis.target import Target


def findings(alias: str, targets: Sequence[Target]) -> Iterator[Finding]:
    with ThreadPoolExecutor(len(targets), thread_name_prefix=f"distlock-{alias}-doctor") as pool:
        answers = dict(enumerate(pool.map(_asked, targets), 1))
    reached = {number: found for number, found in answers.items() if isinstance(found, Facts)}
    needed = majority(len(targets))
    yield Finding(
        "info" if len(reached) >= needed else "error",
        f"{len(reached)} of {len(targets)} nodes answer, {needed} are needed.",
    )
    for number, error in answers.items():
        if isinstance(error, ClusterNode):
            yield Finding("error", f"Node {number}: {error}")
        elif not isinstance(error, Facts):
            yield Finding(
                "warning",
                f"Node {number} does not answer: {type(error).__name__}.",
                "If one more node fails, no lock can be acquired.",
            )
    yield from _same(reached)
    for number, found in reached.items():
        yield from of_server(found, f"Node {number}: ")


def _asked(target: Target) -> Facts | Exception:
    try:
        return facts(target)
    except Exception as error:  # of the socket or of redis-py
        return error


def _same(reached: dict[int, Facts]) -> Iterator[Finding]:
    """Two addresses of one server are two votes of one voter."""
    numbers = defaultdict(list)
    for number, found in reached.items():
        if "run_id" in found.info:
            numbers[found.info["run_id"]].append(str(number))
    for same in numbers.values():
        if len(same) > 1:
            yield Finding(
                "error",
                f"The nodes {' and '.join(same)} are the same server: two processes may hold one lock.",
                "Each vote must come from a server of its own.",
            )
