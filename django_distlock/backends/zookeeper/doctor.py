"""The findings of `distlock doctor` about a ZooKeeper ensemble."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kazoo.hosts import collect_hosts

from django_distlock.concurrency.deadline import SILENCE
from django_distlock.records import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .options import Settings
    from .session import ZooKeeperSession

# The only command that servers answer without configuration:
# https://zookeeper.apache.org/doc/r3.8.0/zookeeperAdmin.html#sc_4lw
COMMAND = b"srvr"
MIN_VERSION = (3, 5, 3)


def findings(alias: str, settings: Settings, session: ZooKeeperSession | None) -> Iterator[Finding]:
    if session is not None:
        wanted = settings.kazoo["timeout"]
        yield Finding("info", f"Session timeout {session.timeout:g} s.")
        if abs(session.timeout - wanted) > 0.01:
            yield Finding(
                "warning",
                f"The server gives sessions {session.timeout:g} s instead of the session_timeout of {wanted:g} s.",
                "Change the option, or minSessionTimeout and maxSessionTimeout of the server.",
            )
    if settings.kazoo.get("use_ssl"):
        yield Finding("info", "The servers are not asked one by one, because of TLS.")
        return
    hosts, _ = collect_hosts(settings.kazoo["hosts"])
    with ThreadPoolExecutor(len(hosts), thread_name_prefix=f"distlock-{alias}-doctor") as pool:
        answers = list(pool.map(_srvr, hosts))
    for (host, port), answer in zip(hosts, answers, strict=True):
        yield from of_server(f"{host}:{port}", answer)
    silent = answers.count(None)
    if silent * 2 >= len(hosts) > 1:
        yield Finding("error", f"{silent} of {len(hosts)} servers do not answer: the ensemble has no majority.")
    if len(hosts) == 1:
        yield Finding(
            "info", "Only one host is named: processes do not find another one when it is down.", "Name all of them."
        )


def _srvr(address: tuple[str, int]) -> str | None:
    """The server's answer, empty if it refuses the command; None if it cannot be reached."""
    try:
        with socket.create_connection(address, SILENCE) as sock:
            sock.settimeout(SILENCE)
            sock.sendall(COMMAND)
            answer = b""
            while chunk := sock.recv(4096):
                answer += chunk
    except OSError:
        return None
    return answer.decode("utf-8", "replace")


def of_server(address: str, answer: str | None) -> Iterator[Finding]:
    if answer is None:
        yield Finding("warning", f"{address} does not answer.")
        return
    version = re.search(r"Zookeeper version: (\d+)\.(\d+)\.(\d+)", answer)
    mode = re.search(r"^Mode: (\w+)", answer, re.MULTILINE)
    if version is None:
        yield Finding("info", f"{address} answers, but does not give its version.")
        return
    numbers = tuple(map(int, version.groups()))
    text = f"{address}: ZooKeeper {'.'.join(version.groups())}, {mode[1] if mode else 'mode unknown'}."
    if numbers < MIN_VERSION:
        yield Finding("error", text, "Locks need 3.5.3 or newer (container nodes).")
    else:
        yield Finding("info", text)
