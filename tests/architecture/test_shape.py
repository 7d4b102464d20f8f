"""The public names, the matrix of backends; and what an import and ``django.setup()`` cost, and what they must not
leave out to be that cheap."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys

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


START = """
import sys, django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", *sys.argv[1].split()],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    **eval(sys.argv[2]),
)
django.setup()
"""
MOST = 10


def output(code: str, *arguments: str) -> str:
    """What ``code`` prints in a process of its own."""
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, cwd=ROOT, env={"PATH": ""}, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def after_setup(code: str, apps: str = "django_distlock", **settings: object) -> str:
    """The output of ``code`` in a process that has called django.setup() and nothing else."""
    return output(START + code, apps, repr(settings))


def test_importing_touches_no_settings_no_models_and_no_driver() -> None:
    code = """
import sys
from django_distlock import *
from django.conf import settings
print(settings.configured, *{'psycopg', 'MySQLdb', 'redis', 'kazoo', 'django_distlock.models'} & set(sys.modules))
"""
    assert output(code).split() == ["False"]


def test_the_pytest_plugin_costs_nothing_where_there_is_no_django() -> None:
    code = """
import sys, pytest; before = set(sys.modules)
import django_distlock.pytest_plugin
print(*{name.partition('.')[0] for name in set(sys.modules) - before})
import django_distlock as public
assert set(public.__all__) <= set(dir(public)) and not hasattr(public, 'nothing_of_this_name')
"""
    assert output(code).split() == ["django_distlock"]


def test_setup_imports_few_modules() -> None:
    """Modules, which do not vary, in the place of milliseconds, which do: 7 of ours take about 5 ms."""
    show = "print(*sys.modules)"
    more = set(after_setup(show).split()) - set(after_setup(show, apps="").split())
    assert "django_distlock.models" in more
    assert len(more) <= MOST, sorted(more)


def test_what_is_imported_when_it_runs_does_run() -> None:
    code = """
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections
settings.DISTLOCK = {"default": {"NOT": 1, "TIMEOUT": None}}
print(*sorted(message.id for message in run_checks(include_deployment_checks=True) if "distlock" in message.id))
call_command("migrate", verbosity=0)
settings.DISTLOCK = {}
call_command("distlock", "prune")
"""
    first, *pruned = after_setup(code).splitlines()
    assert first.split() == ["distlock.E002", "distlock.W007"]
    assert {line.partition(":")[0] for line in pruned} >= {"events", "idempotency"}


def test_a_history_is_recorded_from_the_first_lock_on() -> None:
    loaded = "print('django_distlock.operations.recorder' in sys.modules)"
    assert after_setup(loaded, DISTLOCK_HISTORY_DAYS=1).split() == ["True"]
    assert after_setup(loaded, DISTLOCK_HISTORY_DAYS="wrong").split() == ["False"]


def test_transactions_that_began_before_the_first_lock_are_known() -> None:
    """R11: also to a task, whose transaction is that of the thread that waits for it."""
    code = """
from asgiref.sync import async_to_sync
from django.db import connections, transaction
with transaction.atomic():
    assert "django_distlock.manager.lock_table" not in sys.modules
    from django_distlock.manager.open_transactions import open_transactions
    async def around():
        return open_transactions()
    assert open_transactions() == async_to_sync(around)() == [connections["default"]]
"""
    after_setup(code)
