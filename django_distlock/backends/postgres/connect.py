"""Names of hosts, looked up outside of libpq: PQconnectStart waits for the name server, deaf to deadlines, and psycopg
holds the interpreter meanwhile, so that no other thread of the process runs, nor any task."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections import defaultdict
from typing import Any

from django_distlock.backends.sessions.session import SessionDead, StatementTimeout
from django_distlock.concurrency.background import Stragglers
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import Flow, Step
from django_distlock.concurrency.parking import Parker

_stragglers: defaultdict[str, Stragglers] = defaultdict(Stragglers)


def with_addresses(alias: str, parameters: dict[str, Any], until: float) -> Flow[dict[str, Any]]:
    """The parameters of a connection with the addresses of its hosts. StatementTimeout at the monotonic time ``until``,
    SessionDead if there are none."""
    hosts = str(parameters.get("host") or "").split(",")
    ports = str(parameters.get("port") or "").split(",")
    if parameters.get("hostaddr") or not any(map(_is_name, hosts)) or len(ports) not in (1, len(hosts)):
        return parameters
    if (reason := _stragglers[alias].refuse()) is not None:
        raise SessionDead(reason)
    lookup = _Lookup(alias, hosts)
    came = False
    try:
        came = yield Step(lookup.parker.park, lookup.parker.apark, (until - monotonic(),))
    finally:
        if not came:
            _stragglers[alias].add(lookup.thread)
    if not came:
        raise StatementTimeout
    if lookup.error is not None:
        raise SessionDead(str(lookup.error)) from lookup.error
    found = [
        (host, address, ports[number if len(ports) > 1 else 0])
        for number, host in enumerate(hosts)
        for address in lookup.addresses[number]
    ]
    names, addresses, numbers = (",".join(column) for column in zip(*found, strict=True))
    return {**parameters, "host": names, "hostaddr": addresses, "port": numbers}


class _Lookup:
    """In a thread of its own, which is left to itself when nobody waits any more."""

    def __init__(self, alias: str, hosts: list[str]) -> None:
        self.parker = Parker()
        self.addresses: list[list[str]] = []
        self.error: OSError | UnicodeError | None = None
        self._hosts = hosts
        self.thread = threading.Thread(target=self._run, name=f"distlock-{alias}-lookup", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.addresses = [_addresses(host) for host in self._hosts]
        except (OSError, UnicodeError) as error:  # not found, or no name at all
            self.error = error
        finally:
            self.parker.wake()


def _addresses(host: str) -> list[str]:
    if not _is_name(host):
        return [host if _is_address(host) else ""]
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _is_name(host: str) -> bool:
    """Neither an address, nor a directory of sockets, nor nothing."""
    return bool(host) and not host.startswith(("/", "@")) and not _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
