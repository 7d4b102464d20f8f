"""What other processes do for the tests of commands; without pytest, whose import takes longer than all of it."""

from __future__ import annotations

import io
import math
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.management import CommandError, call_command, execute_from_command_line
from django.db import connections
from django.db.models.signals import pre_migrate

from django_distlock.manager import name_log
from django_distlock.operations.commands import migrate

if TYPE_CHECKING:
    from tests.support.child import Link

NOBODY = 65534  # the user
_link: Link | None = None


def run(link: Link, *arguments: str) -> None:
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
    out, err, began = io.StringIO(), io.StringIO(), time.monotonic()
    try:
        call_command("distlock", *arguments, stdout=out, stderr=err, no_color=True)
        status = 0
    except CommandError as error:
        status = error.returncode
        err.write(str(error))
    except SystemExit as error:
        status = int(error.code or 0)
    link.say([status, time.monotonic() - began, out.getvalue(), err.getvalue()])


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
    if arguments[0] == "migrate":
        pre_migrate.connect(_planned, weak=False)
    migrate.PAUSE = 0.05
    link.hear()
    execute_from_command_line(["manage.py", *arguments])


def _say(value: Any = None) -> None:
    import json

    os.write(1, (json.dumps(value) + "\n").encode())


def _planned(app_config: Any, **kwargs: Any) -> None:
    if app_config.label == "dataapp":
        tell("planned")
