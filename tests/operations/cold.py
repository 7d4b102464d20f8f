"""A process that lists held locks before it has imported a driver."""

from __future__ import annotations

import sys
import time
from importlib.abc import MetaPathFinder
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.child import Link

# Beyond the time that a listing has.
SLOW = 3.0


class SlowDisk(MetaPathFinder):
    """As on a busy host: the first import of a driver takes longer than a listing may."""

    def __init__(self, module: str) -> None:
        self.module = module
        self.met = False

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == self.module and not self.met:
            self.met = True
            time.sleep(SLOW)


def list_first(link: Link, alias: str, module: str) -> None:
    """Says the error of the alias, if any, and whether it was this that imported the driver."""
    from django_distlock import held_locks

    for name in [name for name in sys.modules if name == module or name.startswith(f"{module}.")]:
        del sys.modules[name]
    disk = SlowDisk(module)
    sys.meta_path.insert(0, disk)
    (report,) = held_locks(alias)
    link.say([report.error, disk.met])
