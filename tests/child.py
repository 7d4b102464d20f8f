"""The other end of tests.processes: runs one function on the test databases of the parent."""

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


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    from django.conf import settings

    for alias, name in json.loads(os.environ["DISTLOCK_CHILD_DATABASES"]).items():
        if alias in settings.DATABASES:  # a test may have added one of its own
            settings.DATABASES[alias]["NAME"] = name
    import django

    django.setup()
    module, _, name = sys.argv[1].partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    function(Link(), *json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
