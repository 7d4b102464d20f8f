"""What other processes do for test_run.py; without pytest, whose import takes longer than all of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from django.core.management import execute_from_command_line

if TYPE_CHECKING:
    from tests.child import Link


def run(link: Link, *arguments: str) -> None:
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as a program has it
    execute_from_command_line(["manage.py", "distlock", "run", *arguments])
