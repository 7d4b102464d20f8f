"""Does a database alias look like a pooler that hands one session to several clients?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from django.core.checks import CheckMessage, Warning
from django.db import connections

if TYPE_CHECKING:
    from typing import Any

    from .acquire import SessionAcquire

# pgbouncer, Odyssey and PgCat by habit, Supabase in transaction mode; ProxySQL.
PORTS = {"postgresql": {"6432", "6543"}, "mysql": {"6033"}}
# Neon, Supabase, and the proxies of Amazon RDS, by the names that they give their poolers.
HOSTS = re.compile(r"-pooler\.|\.pooler\.supabase\.com$|\.proxy-[^.]+\.[^.]+\.rds\.amazonaws\.com(\.cn)?$", re.I)


def check(backend: SessionAcquire[Any]) -> list[CheckMessage]:
    """Without a connection. At the first use such a session is refused, if the pooler is one of that kind."""
    alias = backend.session_database
    parameters = connections.settings[alias]
    ports = PORTS.get(connections[alias].vendor, set())
    if str(parameters.get("PORT")) in ports:
        why = f"its port is {parameters['PORT']}"
    elif HOSTS.search(str(parameters.get("HOST", ""))):
        why = f"its host is {parameters['HOST']}"
    elif parameters.get("DISABLE_SERVER_SIDE_CURSORS"):
        why = "DISABLE_SERVER_SIDE_CURSORS is set"
    else:
        return []
    return [
        Warning(
            f"DISTLOCK[{backend.alias!r}]: the lock sessions use the database {alias!r}, which looks like a pooler: "
            f"{why}. In transaction mode locks outside of atomic() are refused.",
            hint="Set OPTIONS['session_database'] to a database alias that connects directly. A pooler in session mode "
            "does no harm: silence this check then.",
            id="distlock.W005",
        )
    ]
