#!/usr/bin/env python
"""Django's command line for the demo; runs from any working directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent


def main() -> None:
    # Python put this folder in front of the path; with it there, `settings` and `registration` would be importable
    # under two names and Django would load the app's models twice. The repository root takes its place.
    sys.path[:] = [str(PROJECT.parent), *(entry for entry in sys.path if Path(entry or ".").resolve() != PROJECT)]
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
