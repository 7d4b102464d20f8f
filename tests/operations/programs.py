"""What other processes do for the tests of operations; without pytest, whose import takes longer than all of it."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connections

from django_distlock import LockLost, advisory_lock, held_locks
from django_distlock.manager import name_log
from django_distlock.operations.commands import migrate
from tests.operations.world import call

if TYPE_CHECKING:
    from tests.support.child import Link

NOBODY = 65534  # the user
_link: Link | None = None


def hold(link: Link, using: str, *names: str) -> None:
    """Hold all names until told; say what became of each."""
    leases = [advisory_lock(name, using=using).acquire() for name in names]
    link.say("held")
    link.hear()
    ends = []
    for lease in leases:
        try:
            lease.release()
            ends.append("released")
        except LockLost:
            ends.append("LockLost")
    link.say(ends)


def wait(link: Link, using: str, name: str) -> None:
    """Wait for the lock, and hold it until told."""
    with advisory_lock(name, using=using, timeout=60):
        link.say("it is mine")
        link.hear()


def run(link: Link, *arguments: str) -> None:
    """manage.py distlock run."""
    sys.stderr = open(2, "w", 1, closefd=False)  # noqa: SIM115 - as a program has it
    execute_from_command_line(["manage.py", "distlock", "run", *arguments])


def run_unseen(link: Link, *arguments: str) -> None:
    """As :func:`run`, in a process whose keepalive thread writes no names."""
    name_log.LOOK = math.inf
    run(link, *arguments)


def run_and_become_another(link: Link, *arguments: str) -> None:
    """As :func:`run` by root, in a process that becomes another user once it is told to."""

    def become() -> None:
        link.hear()
        os.setgroups([])
        os.setuid(NOBODY)
        link.say("become")

    threading.Thread(target=become, daemon=True).start()
    run(link, *arguments)


class SlowDisk(MetaPathFinder):
    """As on a busy host: the first import of a driver takes longer than a listing may."""

    def __init__(self, module: str) -> None:
        self.module, self.met = module, False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == self.module and not self.met:
            self.met = True
            time.sleep(3.0)


def list_first(link: Link, alias: str, module: str) -> None:
    """Says the error of the alias, if any, and whether it was this that imported the driver."""
    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        del sys.modules[name]
    disk = SlowDisk(module)
    sys.meta_path.insert(0, disk)
    (report,) = held_locks(alias)
    link.say([report.error, disk.met])


def operate(link: Link, database: str, port: int, *arguments: str) -> None:
    """manage.py distlock of a project whose default database is that of an alias, behind another port, where the site
    key is, too; says the exit status, the seconds, and what was written."""
    connections.settings["default"] = {**connections.settings[database], "PORT": str(port)}
    if hasattr(connections._connections, "default"):
        del connections["default"]
    for other in set(connections.settings) - {"default", "mariadb"}:
        del connections.settings[other]
    leases = "django_distlock.backends.leasetable.LeaseTableBackend"
    settings.DISTLOCK = {
        "default": {},
        "leases": {"BACKEND": leases, "OPTIONS": {"database": "default"}},
        "other": {"BACKEND": leases, "OPTIONS": {"database": "mariadb"}},
    }
    settings.DISTLOCK_SITE_KEY = None
    began = time.monotonic()
    status, out, err = call(*arguments)
    link.say([status, time.monotonic() - began, out + err])


def tell(what: str) -> None:
    """Say it, and wait for leave to go on."""
    assert _link is not None
    _link.say(what)
    _link.hear()


def manage(link: Link, database: str, name: str, *arguments: str) -> None:
    """manage.py of a project with nothing but the database ``name`` on the server of an alias."""
    global _link
    _link = link
    sys.stderr = open(2, "w", 1, closefd=False)  # noqa: SIM115 - as a program has it
    sys.stdout = open(2, "w", 1, closefd=False)  # noqa: SIM115 - the link is on the descriptor 1
    _link.say = _say  # type: ignore[method-assign]
    connections.settings["default"] = {**connections.settings[database], "NAME": name}
    if hasattr(connections._connections, "default"):
        del connections["default"]
    settings.DISTLOCK = {}
    settings.DISTLOCK_SITE_KEY = None
    settings.MIGRATION_MODULES = {"dataapp": "tests.operations.counted"}
    migrate.PAUSE = 0.05
    link.hear()
    execute_from_command_line(["manage.py", *arguments])


def _say(value: Any = None) -> None:
    os.write(1, (json.dumps(value) + "\n").encode())
