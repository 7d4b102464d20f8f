"""What OPTIONS may be, and system checks of the nodes, without a connection."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from django_distlock.backends.redis.target import Target, WrongTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


def check_nodes(alias: str, nodes: Sequence[str], targets: Sequence[Target]) -> list[CheckMessage]:
    where = f"DISTLOCK[{alias!r}]"
    found: list[CheckMessage] = []
    if len(set(nodes)) < len(nodes):
        found.append(
            Error(
                f"{where}: OPTIONS['nodes'] names a node twice.",
                hint="Each vote must come from a server of its own.",
                id="distlock.E021",
            )
        )
    if len(nodes) < LEAST_NODES:
        found.append(
            Error(
                f"{where}: Redlock needs at least {LEAST_NODES} nodes, not {len(nodes)}.",
                hint="With one Redis take django_distlock.backends.redis.RedisBackend.",
                id="distlock.E022",
            )
        )
    elif len(nodes) % 2 == 0:
        found.append(
            Warning(
                f"{where}: with {len(nodes)} nodes no more may fail than with {len(nodes) - 1}.",
                hint="Take an odd number of nodes.",
                id="distlock.W021",
            )
        )
    for number, target in enumerate(targets, 1):
        try:
            target.resolve()
        except WrongTarget as error:
            found.append(Error(f"{where}: node {number} of OPTIONS['nodes']: {error}", id="distlock.E023"))
    return found
