"""The ways to register: the same check and insert in one transaction, under each lock.

A peer's lock surrounds the transaction, because a lock that is freed before the commit protects nothing.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib.auth.hashers import make_password
from django.db import IntegrityError, transaction

from benchmarks.servers import Redis, ZooKeeper
from benchmarks.signups.models import Account, Door, UniqueAccount

if TYPE_CHECKING:
    from benchmarks.signups.models import Person
    from testproject.registration.forms import SignUp

TTL = 30  # seconds, for every lease
POSTGRES, BOTH = ("postgres",), ("postgres", "mysql")


def register(sign_up: SignUp, model: type[Account | UniqueAccount] = Account) -> Person | None:
    """Return the new account, or None if the address is taken. Alone, this function is the race."""
    if model.objects.filter(email=sign_up.key).exists():
        return None
    return model.objects.create(email=sign_up.key, password=make_password(sign_up.password))


class Way(ABC):
    """One way to register, in a server of its own."""

    label: ClassVar[str]
    slug: ClassVar[str]
    groups: ClassVar[tuple[str, ...]] = BOTH
    exclusive: ClassVar[bool] = True
    model: ClassVar[type[Account | UniqueAccount]] = Account

    @abstractmethod
    def sign_up(self, sign_up: SignUp) -> Person | None:
        """Register once, whatever other processes do."""


class Unique(Way):
    """The database refuses the second row: the measure for the group."""

    label = "unique constraint"
    slug = "unique"
    model = UniqueAccount

    def sign_up(self, sign_up: SignUp) -> Person | None:
        """Insert, and take the refusal for an answer."""
        try:
            with transaction.atomic():
                return register(sign_up, UniqueAccount)
        except IntegrityError:
            return None


class Locked(Way):
    """A lock around a transaction."""

    def sign_up(self, sign_up: SignUp) -> Person | None:
        """Commit before the lock is given back."""
        with self.lock(f"register:{sign_up.key}"), transaction.atomic():
            return register(sign_up)

    @abstractmethod
    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return the lock of one address."""


class Nothing(Locked):
    """No lock: this one must make duplicates."""

    label = slug = "none"
    exclusive = False

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return something that locks nothing."""
        return nullcontext()


class PerEmail(Way):
    """Our lock of one address inside the transaction, which keeps it until the commit: what we recommend."""

    label = "advisory-per-email"
    slug = "per-email"

    def sign_up(self, sign_up: SignUp) -> Person | None:
        """Have the transaction keep the lock."""
        from django_distlock import advisory_lock

        with transaction.atomic(), advisory_lock(f"register:{sign_up.key}"):
            return register(sign_up)


class PerEmailOutside(Locked):
    """Our lock of one address around the transaction, as a decorated view takes it."""

    label = "advisory-per-email around atomic()"
    slug = "per-email-outside"

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return the advisory lock."""
        from django_distlock import advisory_lock

        return advisory_lock(name)


class OneName(Way):
    """Our one lock for all registrations, inside the transaction."""

    label = slug = "advisory"

    def sign_up(self, sign_up: SignUp) -> Person | None:
        """Register one at a time."""
        from django_distlock import advisory_lock

        with transaction.atomic(), advisory_lock("register"):
            return register(sign_up)


class Row(Way):
    """One row that every registration locks."""

    label = slug = "row"

    def sign_up(self, sign_up: SignUp) -> Person | None:
        """Register one at a time."""
        from django_distlock import row_lock

        with transaction.atomic(), row_lock(Door, pk=1):
            return register(sign_up)


class Table(Way):
    """The table itself; the block is the transaction."""

    label = slug = "table"

    def sign_up(self, sign_up: SignUp) -> Person | None:
        """Register one at a time."""
        from django_distlock import table_lock

        with table_lock(Account):
            return register(sign_up)


class PgLock(Locked):
    """django-pglock's session lock."""

    label = slug = "django-pglock"
    groups = POSTGRES

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return the lock."""
        import pglock

        return pglock.advisory(name)


class PgLockTransaction(Way):
    """django-pglock's transaction lock, which opens a transaction itself."""

    label = "django-pglock, xact"
    slug = "django-pglock-xact"
    groups = POSTGRES

    def sign_up(self, sign_up: SignUp) -> Person | None:
        """Have the transaction keep the lock."""
        import pglock

        with pglock.advisory(f"register:{sign_up.key}", xact=True):
            return register(sign_up)


class DjangoMySQL(Locked):
    """django-mysql's named lock."""

    label = slug = "django-mysql"
    groups = ("mysql",)

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return the lock; MySQL takes names of up to 64 characters."""
        from django_mysql.locks import Lock

        return Lock(name[:64])


@functools.cache
def redis_client() -> Any:
    """Return the one client of this process."""
    return Redis.clients()[0]


class RedisPy(Locked):
    """redis-py's Lock."""

    label = "redis-py Lock"
    slug = "redis-py"
    groups = POSTGRES

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return the lock, which polls every 100 ms."""
        return redis_client().lock(name, timeout=TTL)


class DjangoRedis(Locked):
    """The lock of a django-redis cache."""

    label = "django-redis cache.lock"
    slug = "django-redis"
    groups = POSTGRES

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return the lock, which polls every 100 ms."""
        from django.core.cache import caches

        return caches["redis"].lock(name, timeout=TTL)


class PythonRedisLock(Locked):
    """python-redis-lock, whose waiters are woken."""

    label = slug = "python-redis-lock"
    groups = POSTGRES

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return the lock."""
        import redis_lock

        return redis_lock.Lock(redis_client(), name, expire=TTL)


@functools.cache
def kazoo_client() -> Any:
    """Return the one client of this process, with a session."""
    from kazoo.client import KazooClient

    client = KazooClient(hosts=ZooKeeper.hosts())
    client.start()
    return client


class Kazoo(Locked):
    """kazoo's Lock recipe."""

    label = "kazoo Lock"
    slug = "kazoo"
    groups = POSTGRES

    def lock(self, name: str) -> AbstractContextManager[Any]:
        """Return the lock."""
        return kazoo_client().Lock(f"/benchmarks/signups/{name}", "benchmarks")


WAYS: tuple[Way, ...] = (
    Unique(),
    PerEmail(),
    PerEmailOutside(),
    OneName(),
    Row(),
    Table(),
    PgLock(),
    PgLockTransaction(),
    DjangoMySQL(),
    RedisPy(),
    DjangoRedis(),
    PythonRedisLock(),
    Kazoo(),
    Nothing(),
)


def find(slug: str) -> Way:
    """Return a way by its part of the address."""
    return next(way for way in WAYS if way.slug == slug)


def of(group: str) -> list[Way]:
    """Return the ways that run on a database."""
    return [way for way in WAYS if group in way.groups]
