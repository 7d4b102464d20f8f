"""Checks of the settings of a Redis alias, and of its server for `distlock doctor`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.checks import CheckMessage, Error

from django_distlock.concurrency import clock
from django_distlock.records import Finding

from .connection import Connection, pack
from .target import ClusterNode, WrongTarget

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .target import Target

PATIENCE = 2.0
# The difference between two clocks that is not worth a warning; seconds.
SKEW = 2.0


def check(alias: str, options: Mapping[str, Any], target: Target) -> list[CheckMessage]:
    """System checks, without a connection."""
    where = f"DISTLOCK[{alias!r}]"
    if "cache" in options and "url" in options:
        return [Error(f"{where}: give either OPTIONS['cache'] or OPTIONS['url'], not both.", id="distlock.E003")]
    try:
        target.resolve()
    except WrongTarget as error:
        return [
            Error(
                f"{where}: {error}",
                hint="OPTIONS['cache'] takes a cache of django-redis; for another one give OPTIONS['url'].",
                id="distlock.E003",
            )
        ]
    return []


class RedisFacts(NamedTuple):
    """INFO of one server, empty if the account may not call it, and by how many seconds its clock is ahead of ours."""

    info: dict[str, str]
    skew: float


def facts(target: Target) -> RedisFacts:
    """The facts, over a new connection. ConnectionFailed, or what redis-py raises, if there is no answer."""
    connection = Connection(target.connect(PATIENCE))
    try:
        until, began = clock.now() + PATIENCE, time.time()
        connection.send(pack("TIME"), pack("INFO"))
        time_there, info = connection.receive(until), connection.receive(until)
        here = (began + time.time()) / 2
    finally:
        connection.close()
    skew = 0.0 if isinstance(time_there, Exception) else int(time_there[0]) + int(time_there[1]) / 1e6 - here
    return RedisFacts(_parsed(info), skew)


def _parsed(info: Any) -> dict[str, str]:
    if not isinstance(info, bytes):
        return {}
    lines = (line.partition(":") for line in info.decode("utf-8", "replace").splitlines() if not line.startswith("#"))
    return {name: value for name, _, value in lines}


def findings(target: Target) -> Iterator[Finding]:
    try:
        found = facts(target)
    except ClusterNode:  # the trial lock has reported it
        return
    except Exception as error:  # of the socket or of redis-py; the trial lock has shown whether locks work
        yield Finding("warning", f"The server did not answer to INFO: {type(error).__name__}.")
        return
    yield from of_server(found)
    if found.info.get("connected_slaves", "0") != "0":
        yield Finding(
            "warning",
            "The server is replicated, which is asynchronous: a fail-over may forget the latest locks.",
            "Use the fencing token (lease.fence), or Redlock on independent servers.",
        )
        if "min_slaves_good_slaves" not in found.info:  # INFO has it only where there is a limit
            yield Finding(
                "warning",
                "min-replicas-to-write is 0: a primary that hangs, and wakes after a fail-over, goes on granting locks "
                "that the new one may grant too.",
                "Set min-replicas-to-write 1 and min-replicas-max-lag to a few seconds on each server.",
            )


def of_server(found: RedisFacts, where: str = "") -> Iterator[Finding]:
    """The findings of one server; ``where`` stands in front of each text."""
    info = found.info
    if not info:
        yield Finding("info", f"{where}The account may not call INFO: nothing is known of the server.")
        return
    yield Finding("info", f"{where}Redis {info.get('redis_version', 'of unknown version')}.")
    if info.get("cluster_enabled") == "1":
        yield Finding("error", f"{where}{ClusterNode()}")
    policy, limit = info.get("maxmemory_policy", "noeviction"), info.get("maxmemory", "0")
    if policy != "noeviction":
        yield Finding(
            "warning" if limit == "0" else "error",
            f"{where}maxmemory-policy is {policy}: when memory is short, Redis deletes locks that are held."
            + (" No maxmemory is set yet." if limit == "0" else ""),
            "Set maxmemory-policy to noeviction, or take a Redis apart from the cache's.",
        )
    if info.get("role") != "master":
        yield Finding(
            "error", f"{where}The server is a replica, which takes no locks.", "Connect to the primary, or by Sentinel."
        )
    if info.get("aof_enabled") != "1":
        yield Finding(
            "warning",
            f"{where}The server has no append-only file: after a restart it knows none of the locks that are held.",
            "Set appendonly yes, with appendfsync always where a second holder does harm.",
        )
    if abs(found.skew) > SKEW:
        direction = "ahead of" if found.skew > 0 else "behind"
        yield Finding(
            "warning",
            f"{where}The server's clock is {abs(found.skew):.1f} s {direction} this host's: times in lists do not "
            "agree, a clock that is set forward ends leases too early, and one that is set back ends those of dead "
            "holders as much too late.",
            "Let both follow the same time servers.",
        )
