"""System checks of the nodes, without a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.checks import CheckMessage, Error, Warning

from .redis_target import WrongTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .redis_target import Target

LEAST_NODES = 3


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
