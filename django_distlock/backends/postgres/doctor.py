"""The questions of `distlock doctor` to a PostgreSQL server."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django_distlock.records import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_distlock.backends.sessions.session import Ask

FACTS = b"""
SELECT current_setting('server_version'), pg_is_in_recovery(),
    inet_client_addr() IS NOT NULL, (SELECT reset_val FROM pg_settings WHERE name = 'tcp_keepalives_idle'),
    (SELECT reset_val FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'),
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    current_setting('max_locks_per_transaction')::int
    * (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int),
    (SELECT count(*) FROM pg_locks WHERE NOT fastpath),
    pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
"""
# A lock table filled beyond this share may overflow under load; then every LOCK and most other statements fail.
FULL = 0.5


class PostgresFacts(NamedTuple):
    """The row of FACTS, as libpq returns it."""

    version: str
    standby: str
    tcp: str
    keepalive: str
    idle: str
    connections: str
    used: str
    places: str
    taken: str
    sees_all: str


def findings(ask: Ask, wait_sessions: int) -> Iterator[Finding]:
    """``ask`` returns the rows of a statement."""
    (row,) = ask(FACTS)
    facts = PostgresFacts(*row)
    yield from of_server(facts)
    yield from of_room(facts, 1 + wait_sessions)


def of_server(facts: PostgresFacts) -> Iterator[Finding]:
    yield Finding("info", f"PostgreSQL {facts.version}.")
    if facts.standby == "t":
        yield Finding(
            "error",
            "This server is a standby: its locks are not those of the primary.",
            "Let the alias, or OPTIONS['session_database'], point to the primary.",
        )
    if facts.tcp == "t" and facts.keepalive == "0":
        yield Finding(
            "info",
            "tcp_keepalives_idle is not set: a transaction whose host vanishes keeps its locks for as long as the "
            "server's system believes in it, two hours on Linux. Sessions of locks outside of transactions set it.",
            "Set tcp_keepalives_idle, for the server or in the OPTIONS of the database.",
        )
    if facts.idle != "0":
        yield Finding(
            "info",
            f"idle_in_transaction_session_timeout is {facts.idle} ms: a transaction that idles longer is ended, with "
            "its locks. Sessions of locks outside of transactions switch it off.",
        )
    if facts.sees_all != "t":
        yield Finding(
            "info",
            "Without the role pg_read_all_stats little is seen of the holders of other accounts.",
            "GRANT pg_read_all_stats TO the account of the alias.",
        )


def of_room(facts: PostgresFacts, wanted: int) -> Iterator[Finding]:
    """``wanted`` is how many connections one process may open."""
    connections, used, places, taken = map(int, (facts.connections, facts.used, facts.places, facts.taken))
    if connections - used < wanted:
        yield Finding(
            "warning",
            f"{used} of {connections} connections are in use; one process takes up to {wanted} for this alias, and one "
            "for each lock that it holds after a wait.",
            "Raise max_connections, or lower wait_sessions or the number of processes.",
        )
    if taken > places * FULL:
        yield Finding(
            "warning",
            f"The server's table of locks has room for about {places}, of which {taken} are taken.",
            "Raise max_locks_per_transaction, or find out who holds so many: distlock list.",
        )
