"""The public names, and the matrix of backends."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re

from django.utils.module_loading import import_string

import django_distlock
import django_distlock.backends
from django_distlock.backends.base import Backend
from tests.matrix import MATRIX
from tests.support.paths import ROOT

LOOPS, MUTEX = (ast.For, ast.While), re.compile(r"\b_?(mutex|guard|turns|end)$")
PUBLIC = [
    "BackendReport",
    "BackendUnavailable",
    "DeadlockDetected",
    "DistlockError",
    "Leader",
    "Lease",
    "LeaseSet",
    "Lock",
    "LockInfo",
    "LockLost",
    "LockNotAcquired",
    "LockNotHeld",
    "LockTimeout",
    "StaleSnapshotWarning",
    "Term",
    "UnsupportedOperation",
    "advisory_lock",
    "alocked",
    "break_lock",
    "held_locks",
    "lock_all",
    "locked",
    "retrying",
    "row_lock",
    "semaphore",
    "table_lock",
]


def test_public_names() -> None:
    assert django_distlock.__all__ == PUBLIC == sorted(PUBLIC)
    assert all(hasattr(django_distlock, name) for name in PUBLIC)


def concrete(base: type[Backend]) -> set[type[Backend]]:
    found: set[type[Backend]] = set()
    for kind in base.__subclasses__():
        found |= concrete(kind)
        if kind.__module__.startswith("django_distlock.") and not kind.__abstractmethods__:
            found.add(kind)
    return found


def test_every_backend_is_in_the_matrix() -> None:
    for module in pkgutil.walk_packages(django_distlock.backends.__path__, "django_distlock.backends."):
        importlib.import_module(module.name)
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in concrete(Backend)}
    named = {import_string(entry.backend) for entry in MATRIX}
    assert kinds == {f"{kind.__module__}.{kind.__qualname__}" for kind in named}


def test_no_loop_in_the_block_of_a_mutex() -> None:
    """From Python 3.12 on the exception of a signal at its jump back would keep the mutex: see lock_table.py."""
    found = []
    for folder in ("backends", "concurrency"):
        for path in (ROOT / "django_distlock" / folder).rglob("*.py"):
            for block in ast.walk(ast.parse(path.read_text())):
                if isinstance(block, ast.With) and MUTEX.search(ast.unparse(block.items[0].context_expr)):
                    loops = [each for part in block.body for each in ast.walk(part) if isinstance(each, LOOPS)]
                    found += [f"{path.relative_to(ROOT)}, line {loop.lineno}" for loop in loops]
    assert not found
