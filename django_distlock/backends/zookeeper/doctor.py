"""What `distlock doctor` asks a ZooKeeper ensemble."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from kazoo.hosts import collect_hosts

from django_distlock.records import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .options import Settings
    from .session import Session

PATIENCE = 1.0
# The one word that servers answer to without being configured for it:
# https://zookeeper.apache.org/doc/r3.8.0/zookeeperAdmin.html#sc_4lw
WORD = b"srvr"
LEAST = (3, 5, 3)


def findings(alias: str, settings: Settings, session: Session | None) -> Iterator[Finding]:
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
    for (host, port), told in zip(hosts, answers, strict=True):
        yield from of_server(f"{host}:{port}", told)
    silent = answers.count(None)
    if silent * 2 >= len(hosts) > 1:
        yield Finding("error", f"{silent} of {len(hosts)} servers do not answer: the ensemble has no majority.")
    if len(hosts) == 1:
        yield Finding(
            "info", "Only one host is named: processes do not find another one when it is down.", "Name all of them."
        )


def _srvr(address: tuple[str, int]) -> str | None:
    """The server's answer, empty if it does not take the word; None if it cannot be reached."""
    try:
        with socket.create_connection(address, PATIENCE) as sock:
            sock.settimeout(PATIENCE)
            sock.sendall(WORD)
            told = b""
            while chunk := sock.recv(4096):
                told += chunk
    except OSError:
        return None
    return told.decode("utf-8", "replace")


def of_server(address: str, told: str | None) -> Iterator[Finding]:
    if told is None:
        yield Finding("warning", f"{address} does not answer.")
        return
    version = re.search(r"Zookeeper version: (\d+)\.(\d+)\.(\d+)", told)
    mode = re.search(r"^Mode: (\w+)", told, re.MULTILINE)
    if version is None:
        yield Finding("info", f"{address} answers, but does not tell its version.")
        return
    numbers = tuple(map(int, version.groups()))
    text = f"{address}: ZooKeeper {'.'.join(version.groups())}, {mode[1] if mode else 'mode unknown'}."
    if numbers < LEAST:
        yield Finding("error", text, "Locks need 3.5.3 or newer (container nodes).")
    else:
        yield Finding("info", text)
