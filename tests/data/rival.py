"""Another process that wants the same tables."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

from django.apps import apps
from django.db import Error, connections, transaction

from django_distlock import DistlockError, table_lock
from django_distlock.data.timeouts import wait_limit
from tests.support.processes import Child

# How long a plain read or write of the rival waits before it calls itself blocked; seconds.
SHORT = 0.15


class Rival:
    """What it is told to do, it does in a process of its own."""

    def __init__(self) -> None:
        self.child = Child(serve)

    def ask(self, *question: Any) -> Any:
        self.tell(*question)
        return self.child.hear()

    def tell(self, *question: Any) -> None:
        self.child.say(question)

    def lock(self, using: str, *models: str, mode: str = "write", timeout: float | None = 5) -> Any:
        """Lock and hold: ["held" or the class of the error, seconds]."""
        return self.ask("lock", using, models, mode, timeout)

    def leave(self) -> None:
        assert self.ask("leave") == "left"

    def gets(self, using: str, *models: str, mode: str = "write") -> bool:
        """Can it have the lock now?"""
        outcome = self.lock(using, *models, mode=mode, timeout=0)[0]
        if outcome == "held":
            self.leave()
        return bool(outcome == "held")

    def reads(self, using: str, model: str = "Account") -> bool:
        return bool(self.ask("read", using, model) == "done")

    def writes(self, using: str, model: str = "Account") -> bool:
        return bool(self.ask("write", using, model) == "done")

    def reset(self) -> None:
        """Give up whatever it holds, and forget what it still has to say."""
        self.tell("reset")
        while self.child.hear() != "reset":
            pass

    def stop(self) -> None:
        self.child.__exit__(None, None, None)


def serve(link: Any) -> None:
    """Answer until there is no question any more; what is held stands on the stack."""
    held: list[Any] = []
    while True:
        try:
            what, *more = link.hear()
        except SystemExit:
            return
        link.say(globals()[f"_{what}"](held, *more))


def _lock(held: list[Any], using: str, models: list[str], mode: str, timeout: float | None) -> list[Any]:
    connections[using].ensure_connection()
    lock = table_lock(*map(model_named, models), mode=mode, using=using, timeout=timeout)
    start = time.monotonic()
    try:
        lock.__enter__()
    except DistlockError as error:
        return [type(error).__name__, time.monotonic() - start]
    held.append(lock)
    return ["held", time.monotonic() - start]


def _leave(held: list[Any]) -> str:
    held.pop().__exit__(None, None, None)
    return "left"


def _reset(held: list[Any]) -> str:
    while held:
        held.pop().__exit__(None, None, None)
    return "reset"


def _begin(held: list[Any], using: str, model: str) -> str:
    """Write a row in a transaction and leave it open."""
    block = transaction.atomic(using=using)
    block.__enter__()
    model_named(model)._default_manager.using(using).create()
    held.append(block)
    return "begun"


def _insert(held: list[Any], using: str, model: str) -> str:
    """Write a row, however long that waits."""
    try:
        model_named(model)._default_manager.using(using).create()
    except Error as error:
        return type(error).__name__
    return "done"


def _read(held: list[Any], using: str, model: str) -> str:
    return _attempt(using, lambda: model_named(model)._default_manager.using(using).first())


def _write(held: list[Any], using: str, model: str) -> str:
    return _attempt(using, lambda: model_named(model)._default_manager.using(using).filter(pk=-1)._raw_delete(using))


def _attempt(using: str, query: Any) -> str:
    try:
        # SQLite: the settings' BEGIN IMMEDIATE would wait, and a plain read shall be one
        block = nullcontext() if using == "default" else transaction.atomic(using=using)
        with block, wait_limit(connections[using], SHORT):
            query()
    except Error:
        return "blocked"
    return "done"


def _session(held: list[Any], using: str) -> int:
    return session(using)


def session(using: str) -> int:
    """The number of this process's session at the server."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()" if using == "postgres" else "SELECT CONNECTION_ID()")
        return int(cursor.fetchone()[0])


def model_named(name: str) -> Any:
    return apps.get_model("dataapp", name)
