"""Every private server, in the order they start.

Another engine (or five copies of one) is one more class and its entries in ENGINES.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tests.support.services.databases import MariaDB, Pgbouncer, Postgres
from tests.support.services.leases import Redis, ZooKeeper
from tests.support.services.mysql import MySQL
from tests.support.services.process import ServicesError

if TYPE_CHECKING:
    from tests.support.services.engine import Engine

REDISES = tuple(f"redis{number}" for number in range(1, 6))
"""Five that know nothing of each other."""

ENGINES: dict[str, type[Engine]] = {
    "zookeeper": ZooKeeper,  # first, because it takes longest to answer
    "postgres": Postgres,
    "pgbouncer": Pgbouncer,  # stands in front of PostgreSQL
    "mariadb": MySQL if os.environ.get("DISTLOCK_MYSQL") else MariaDB,
    **dict.fromkeys(REDISES, Redis),
}


def chosen() -> dict[str, type[Engine]]:
    """All of them, or those that DISTLOCK_SERVERS names, with commas between."""
    names = os.environ.get("DISTLOCK_SERVERS", "")
    picked = names.split(",") if names else list(ENGINES)
    if unknown := set(picked) - set(ENGINES):
        raise ServicesError(f"DISTLOCK_SERVERS names {', '.join(sorted(unknown))}; there are {', '.join(ENGINES)}")
    return {name: engine for name, engine in ENGINES.items() if name in picked}
