"""What is checked of the OPTIONS, and what `distlock doctor` asks the nodes.

Messages name a node by its number: an address may hold a password.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from django_distlock.backends.redis.doctor import RedisFacts, facts, of_server
from django_distlock.backends.redis.target import Target, WrongTarget
from django_distlock.records import Finding

from .node import ClusterNode
from .quorum import majority

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


LEAST_NODES = 3


def targets_of(alias: str, options: Mapping[str, Any]) -> list[Target]:
    """ImproperlyConfigured, naming the option, if it cannot be used."""
    nodes, timeout = options.get("nodes"), options.get("node_timeout")
    if not isinstance(nodes, (list, tuple)) or not nodes or not all(isinstance(node, str) for node in nodes):
        raise _wrong(alias, "nodes", "a list of URLs or of aliases in CACHES")
    if timeout is not None:
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
            raise _wrong(alias, "node_timeout", "a number of seconds")
        if not 0 < timeout < math.inf:
            raise _wrong(alias, "node_timeout", "above zero and finite")
    targets = [Target(url=node) if "://" in node else Target(cache=node) for node in nodes]
    for target in targets:
        with contextlib.suppress(WrongTarget):  # said by the first who connects, and by the checks
            target.resolve()  # imports the driver, for which no caller has the time
    return targets


def _wrong(alias: str, option: str, wanted: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"DISTLOCK[{alias!r}]: OPTIONS[{option!r}] must be {wanted}.")


def check(alias: str, nodes: Sequence[str], targets: Sequence[Target]) -> Iterator[CheckMessage]:
    where = f"DISTLOCK[{alias!r}]"
    if len(set(nodes)) < len(nodes):
        yield Error(
            f"{where}: OPTIONS['nodes'] names a node twice.",
            hint="Each vote must come from a server of its own.",
            id="distlock.E021",
        )
    if len(nodes) < LEAST_NODES:
        yield Error(
            f"{where}: Redlock needs at least {LEAST_NODES} nodes, not {len(nodes)}.",
            hint="With one Redis take django_distlock.backends.redis.RedisBackend.",
            id="distlock.E022",
        )
    elif len(nodes) % 2 == 0:
        yield Warning(
            f"{where}: with {len(nodes)} nodes no more may fail than with {len(nodes) - 1}.",
            hint="Take an odd number of nodes.",
            id="distlock.W021",
        )
    for number, target in enumerate(targets, 1):
        try:
            target.resolve()
        except WrongTarget as error:
            yield Error(f"{where}: node {number} of OPTIONS['nodes']: {error}", id="distlock.E023")


def findings(alias: str, targets: Sequence[Target]) -> Iterator[Finding]:
    with ThreadPoolExecutor(len(targets), thread_name_prefix=f"distlock-{alias}-doctor") as pool:
        answers = dict(enumerate(pool.map(_asked, targets), 1))
    reached = {number: found for number, found in answers.items() if isinstance(found, RedisFacts)}
    needed = majority(len(targets))
    yield Finding(
        "info" if len(reached) >= needed else "error",
        f"{len(reached)} of {len(targets)} nodes answer, {needed} are needed.",
    )
    for number, error in answers.items():
        if not isinstance(error, RedisFacts):
            yield Finding(
                "warning",
                f"Node {number} does not answer: {type(error).__name__}.",
                "If one more node fails, no lock can be acquired.",
            )
    yield from _same(reached)
    for number, found in reached.items():
        if found.info.get("cluster_enabled") == "1":
            yield Finding("error", f"Node {number}: {ClusterNode()}")
        yield from of_server(found, f"Node {number}: ")


def _asked(target: Target) -> RedisFacts | Exception:
    try:
        return facts(target)
    except Exception as error:  # of the socket or of redis-py
        return error
    finally:
        target.close()


def _same(reached: dict[int, RedisFacts]) -> Iterator[Finding]:
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
