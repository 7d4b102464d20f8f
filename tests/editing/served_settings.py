"""The test project's settings for the server processes."""

from __future__ import annotations

import os

from testproject.settings import *  # noqa: F403
from testproject.settings import DATABASES, PROJECT, TEMPLATES

ROOT_URLCONF = "tests.editing.site"
TEMPLATES = [{**TEMPLATES[0], "DIRS": [PROJECT.parent / "tests" / "editing" / "templates"]}]
SESSION_SAVE_EVERY_REQUEST = True
if level := os.environ.get("DISTLOCK_TEST_ISOLATION"):
    options = DATABASES["default"].setdefault("OPTIONS", {})
    if DATABASES["default"]["ENGINE"].endswith("postgresql"):
        from psycopg import IsolationLevel

        options["isolation_level"] = IsolationLevel[level.upper().replace(" ", "_")]
    else:
        options["isolation_level"] = level
