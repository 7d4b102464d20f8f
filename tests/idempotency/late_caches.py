"""Django's caches, and one that counts time as Memcached does, whose background threads a test can hold up."""

from __future__ import annotations

import threading
from typing import Any

from django.core.cache.backends.db import DatabaseCache
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.filebased import FileBasedCache
from django.core.cache.backends.locmem import LocMemCache
from django_redis.cache import RedisCache as DjangoRedisCache

METHODS = ("get", "get_many", "set", "set_many", "add", "touch", "delete", "delete_many", "incr")


class Gate:
    """Where operations of other threads than those of requests wait: "before" or "after" they are carried out."""

    def __init__(self) -> None:
        self.where = ""
        self.reached, self.open = threading.Event(), threading.Event()
        self.requests: set[threading.Thread] = set()
        self.others: set[threading.Thread] = set()

    def admit(self) -> None:
        """The calling thread is that of a request."""
        self.requests.add(threading.current_thread())

    def let_through(self) -> None:
        """Open the gate, and wait until the rounds that it has held up are over."""
        self.open.set()
        for thread in list(self.others):
            thread.join(5)

    def passed(self, where: str) -> None:
        thread = threading.current_thread()
        if where == self.where and thread not in self.requests and not self.open.is_set():
            self.others.add(thread)
            self.reached.set()
            self.open.wait(60)


gate = Gate()


def held_up(base: type[Any]) -> type[Any]:
    """A subclass whose methods pass the gate."""

    def through_the_gate(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            gate.passed("before")
            found = getattr(super(kind, self), name)(*args, **kwargs)
            gate.passed("after")
            return found

        return method

    kind = type(f"Late{base.__name__}", (base,), {name: through_the_gate(name) for name in METHODS})
    return kind


class WholeSeconds(LocMemCache):
    """As Memcached: fractions of a second are cut off, and less than one is in the past."""

    def get_backend_timeout(self, timeout: Any = 300) -> Any:
        return super().get_backend_timeout(timeout if timeout is None else int(timeout) or -1)


LateLocMem = held_up(LocMemCache)
LateWholeSeconds = held_up(WholeSeconds)
LateDjangoRedis = held_up(DjangoRedisCache)
LateFiles = held_up(FileBasedCache)
LateTable = held_up(DatabaseCache)


class SilentCache(DummyCache):
    """As one that swallows its errors."""

    def __init__(self, *args: Any) -> None:
        super().__init__("", {})

    def add(self, *args: Any, **kwargs: Any) -> bool:
        return False
