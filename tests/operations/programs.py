"""What other processes do for the tests of operations; without pytest, whose import takes longer than all of it."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from typing import TYPE_CHECKING

from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connections

from django_distlock import LockLost, advisory_lock
from django_distlock.manager import name_log
from django_distlock.operations.commands import migrate

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
    name_log.CHECK_EVERY = math.inf
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


def tell(what: str) -> None:
    """Say it, and wait for leave to go on."""
    assert _link is not None
    os.write(1, (json.dumps(what) + "\n").encode())
    _link.hear()


def manage(link: Link, database: str, name: str, *arguments: str) -> None:
    """manage.py of a project with nothing but the database ``name`` on the server of an alias."""
    global _link
    _link = link
    # as a program has it; the link is on the descriptor 1
    sys.stdout = sys.stderr = open(2, "w", 1, closefd=False)  # noqa: SIM115
    connections.settings["default"] = {**connections.settings[database], "NAME": name}
    if hasattr(connections._connections, "default"):
        del connections["default"]
    settings.DISTLOCK, settings.DISTLOCK_SITE_KEY = {}, None
    settings.MIGRATION_MODULES = {"dataapp": "tests.operations.counted"}
    migrate.PAUSE = 0.05
    link.hear()
    execute_from_command_line(["manage.py", *arguments])
