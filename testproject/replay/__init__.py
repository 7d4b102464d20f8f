"""Replays a fault with real processes on a real database, in every way to prevent it, and says what came of it."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
MANAGE = TOP / "testproject" / "manage.py"


class ReplayError(Exception):
    """A process of the replay died or did not do what it should; says nothing about the locks."""


def command_line(command: str) -> str:
    """What to type at the top of the checkout to run this command as this process runs: with the interpreter of its
    virtual environment, and on its database."""
    python = Path(sys.executable)
    shown = python.relative_to(TOP) if python.is_relative_to(TOP) else python
    database = [f"DB={shlex.quote(engine)}"] if (engine := os.environ.get("DB", "sqlite")) != "sqlite" else []
    return " ".join([*database, shlex.quote(str(shown)), str(MANAGE.relative_to(TOP)), command])
