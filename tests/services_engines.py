"""Every private server, in the order they start.

Another engine (or five copies of one) is one more class and its entries in ENGINES.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.services_databases import MariaDB, Pgbouncer, Postgres
from tests.services_leases import Redis, ZooKeeper

if TYPE_CHECKING:
    from tests.services_engine import Engine

REDISES = tuple(f"redis{number}" for number in range(1, 6))
"""Five that know nothing of each other."""

ENGINES: dict[str, type[Engine]] = {
    "zookeeper": ZooKeeper,  # first, because it takes longest to answer
    "postgres": Postgres,
    "pgbouncer": Pgbouncer,  # stands in front of PostgreSQL
    "mariadb": MariaDB,
    **dict.fromkeys(REDISES, Redis),
}
