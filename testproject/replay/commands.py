"""How to type a command of the demo."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

MANAGE = Path(__file__).resolve().parents[1] / "manage.py"


def command_line(command: str) -> str:
    """What to type at the top of the checkout to run this command as this process runs: with the interpreter of its
    virtual environment, and on its database."""
    top = MANAGE.parents[1]
    python = Path(sys.executable)
    shown = python.relative_to(top) if python.is_relative_to(top) else python
    database = [f"DB={shlex.quote(engine)}"] if (engine := os.environ.get("DB", "sqlite")) != "sqlite" else []
    return " ".join([*database, shlex.quote(str(shown)), str(MANAGE.relative_to(top)), command])
