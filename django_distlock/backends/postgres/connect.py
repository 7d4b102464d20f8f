"""Opening a dedicated PostgreSQL session: its parameters, the addresses of its hosts, and its settings."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import os
import re
import socket
from typing import Any

from psycopg import pq
from psycopg.conninfo import make_conninfo

from django_distlock.backends.sessions.session import ServerError, SessionDead, StatementTimeout
from django_distlock.concurrency.background import Background, CallTimeout, NotStarted
from django_distlock.concurrency.sockets import ready
from django_distlock.exceptions import UnsupportedOperation

from .session import PostgresSession

# "Feature not supported", "syntax error or undefined object": a server that only speaks PostgreSQL's protocol.
REFUSALS = frozenset({"0A", "42"})
# Timeouts that an administrator set for applications would end a lock session, or a wait on it.
SETTINGS = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    # For the server's end of the connection: a client whose host has vanished holds its locks for 5 s, not for 2 h. The
    # keepalives of conninfo() watch the client's end only.
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
}
# Compiling the statement that lists locks takes longer than running it ever does.
SETTINGS_12 = {"tcp_user_timeout": "5000", "jit": "off"}
SETTINGS_14 = {"idle_session_timeout": "0"}
# The interval at which the server checks a waiter's socket, so that a dead one leaves the queue; milliseconds.
CHECK_INTERVAL = "1000"


def application_name() -> str:
    """Host and process id, cut to PostgreSQL's 63 characters."""
    pid = str(os.getpid())
    host = re.sub(r"[^!-~]", "?", socket.gethostname())[: 63 - len("distlock :") - len(pid)]
    return f"distlock {host}:{pid}"


def conninfo(parameters: dict[str, Any]) -> str:
    """libpq's connection string for the parameters that Django's backend would connect with."""
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    given = {key: value for key, value in parameters.items() if key in known and value is not None}
    ours = {
        "application_name": application_name(),
        "keepalives": 1,
        "keepalives_idle": 2,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": 5000,
    }
    return make_conninfo("", **{**ours, **given})


async def open_session(alias: str, parameters: dict[str, Any], waits: bool, until: float) -> PostgresSession:
    """Connect by the monotonic time ``until``. SessionDead with the server's message, StatementTimeout,
    UnsupportedOperation for a server that is no PostgreSQL."""
    session = PostgresSession(await connect(alias, parameters, until), waits)
    try:
        await _prepare(session, alias, until)
    except BaseException:
        session.close()
        raise
    return session


async def connect(alias: str, parameters: dict[str, Any], until: float) -> Any:
    """A bare connection of libpq."""
    parameters = await with_addresses(alias, parameters, until)
    conn = pq.PGconn.connect_start(conninfo(parameters).encode())
    try:
        while True:
            status = conn.connect_poll()
            if status == pq.PollingStatus.OK:
                return conn
            if status == pq.PollingStatus.FAILED:
                raise SessionDead(conn.get_error_message())
            writing = status == pq.PollingStatus.WRITING
            if not await ready(conn.socket, writing, until):
                raise StatementTimeout
    except BaseException:
        conn.finish()
        raise


async def _prepare(session: PostgresSession, alias: str, until: float) -> None:
    version = session.conn.server_version
    wanted = SETTINGS | (SETTINGS_12 if version >= 120000 else {}) | (SETTINGS_14 if version >= 140000 else {})
    if session.conn.parameter_status(b"server_encoding") == b"SQL_ASCII":
        # such a server does not know the meaning of its bytes, and refuses foreign ones in UTF-8
        wanted = wanted | {"client_encoding": "SQL_ASCII"}
    columns = ["pg_backend_pid()", *(f"set_config('{name}', '{value}', false)" for name, value in wanted.items())]
    try:
        facts = await session.query(f"SELECT {', '.join(columns)}".encode(), until)
    except ServerError as error:
        if str(error.code)[:2] not in REFUSALS:
            raise
        rows = await session.query(b"SELECT version()", until)
        raise UnsupportedOperation(
            f"The server of alias {alias!r} ({rows[0][0]}) refuses what a lock session of PostgreSQL needs: "
            f"{str(error).strip()} Take another backend there, such as leasetable.LeaseTableBackend or "
            "redis.RedisBackend."
        ) from error
    session.server_id = int(facts[0][0] or 0)
    if session.waits and version >= 140000:
        # not on every platform; elsewhere a dead waiter leaves the queue when its turn comes
        with contextlib.suppress(ServerError):
            await session.query(f"SET client_connection_check_interval = {CHECK_INTERVAL}".encode(), until)


async def with_addresses(alias: str, parameters: dict[str, Any], until: float) -> dict[str, Any]:
    """``parameters`` with the addresses of their hosts. StatementTimeout at the monotonic time ``until``, SessionDead
    if a host has none.

    PQconnectStart would wait for the name server itself, without a deadline, and psycopg holds the interpreter
    during that: no other thread of the process would run, nor any task.
    """
    hosts = str(parameters.get("host") or "").split(",")
    ports = str(parameters.get("port") or "").split(",")
    if parameters.get("hostaddr") or not any(map(_is_name, hosts)) or len(ports) not in (1, len(hosts)):
        return parameters
    try:
        resolved = await _lookups(alias).call(until, _addresses, hosts)
    except CallTimeout as error:
        raise StatementTimeout from error
    except (NotStarted, OSError, UnicodeError) as error:  # not found, or not a name
        raise SessionDead(str(error)) from error
    found = [
        (host, address, ports[number if len(ports) > 1 else 0])
        for number, host in enumerate(hosts)
        for address in resolved[number]
    ]
    names, addresses, numbers = (",".join(column) for column in zip(*found, strict=True))
    return {**parameters, "host": names, "hostaddr": addresses, "port": numbers}


@functools.cache
def _lookups(alias: str) -> Background:
    return Background(f"distlock-{alias}-lookup")


def _addresses(hosts: list[str]) -> list[list[str]]:
    """The addresses of each host, with '' for one that is a directory of sockets or missing."""
    return [_resolved(host) if _is_name(host) else [host if _is_address(host) else ""] for host in hosts]


def _resolved(host: str) -> list[str]:
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def _is_name(host: str) -> bool:
    """Not an address, a directory of sockets, or empty."""
    return bool(host) and not host.startswith(("/", "@")) and not _is_address(host)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
