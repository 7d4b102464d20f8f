"""The other end of tests.support.processes: runs one function on the test databases of the parent."""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


class Link:
    """How a child talks with its test."""

    def say(self, value: Any = None) -> None:
        sys.stdout.write(json.dumps(value) + "\n")
        sys.stdout.flush()

    def hear(self) -> Any:
        """Wait for the parent; ends the child if the parent is gone."""
        line = sys.stdin.readline()
        if not line:
            raise SystemExit(3)
        return json.loads(line)


def load() -> None:
    """Everything that takes long and opens nothing."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    import django
    from django.conf import settings
    from django.utils.module_loading import import_string

    django.setup()
    from django_distlock.conf import read_alias

    for alias in settings.DISTLOCK:
        import_string(read_alias(alias).backend)


def run(function: str, arguments: str, databases: str) -> None:
    """Call the function ("module:name") with the arguments and use the databases, both as JSON."""
    from django.conf import settings

    for alias, name in json.loads(databases).items():
        if alias in settings.DATABASES:  # a test may have added one of its own
            settings.DATABASES[alias]["NAME"] = name
    module, _, name = function.partition(":")
    called: Any = importlib.import_module(module)
    for part in name.split("."):
        called = getattr(called, part)
    called(Link(), *json.loads(arguments))


if __name__ == "__main__":
    load()
    run(*sys.argv[1:])
