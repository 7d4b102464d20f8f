"""How much of a test that takes long is run: all of it under ``make test FULL=1``, a part in every other run."""

from __future__ import annotations

import os

FULL = os.environ.get("DISTLOCK_FULL") == "1"
