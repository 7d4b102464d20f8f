"""Every backend that the contract is tested on: one entry per alias of testproject's DISTLOCK.

A backend without an entry fails a test. A server that does not run fails the suite; nothing is skipped.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """``using``: the lock alias. ``database``: the database alias whose transactions count; None where there is none.
    ``processes``: is the lock seen by other processes? ``fifo``: are waiters of several processes served in order?"""

    using: str
    backend: str
    database: str | None
    processes: bool = True
    fifo: bool = True


MATRIX = (
    Entry("memory", "django_distlock.backends.memory.MemoryBackend", None, processes=False),
    Entry("leasetable", "django_distlock.backends.leasetable.LeaseTableBackend", "default"),
    Entry("leasetable_postgres", "django_distlock.backends.leasetable.LeaseTableBackend", "postgres"),
    Entry("leasetable_mariadb", "django_distlock.backends.leasetable.LeaseTableBackend", "mariadb"),
    Entry("postgres", "django_distlock.backends.postgres.AdvisoryBackend", "postgres"),
    Entry("redis", "django_distlock.backends.redis.RedisBackend", None),
    Entry("zookeeper", "django_distlock.backends.zookeeper.ZooKeeperBackend", None),
    Entry("mysql", "django_distlock.backends.mysql.NamedLockBackend", "mariadb"),
    Entry("redlock", "django_distlock.backends.redlock.RedlockBackend", None, fifo=False),
)
