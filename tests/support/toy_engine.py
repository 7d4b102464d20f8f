"""Settings with one alias more: the engine of CONTRIBUTING's "Add an engine", as tests/architecture makes it.

    python -m pytest --ds tests.support.toy_engine tests/contract

A contributor edits testproject/databases.py and tests/matrix.py instead.
"""

from __future__ import annotations

import os

from tests import matrix
from tests.settings import *  # noqa: F403
from tests.settings import DISTLOCK as DISTLOCK_OF_THE_SUITE

BACKEND = "toyengine.FileBackend"
DISTLOCK = {
    **DISTLOCK_OF_THE_SUITE,
    "toy": {"BACKEND": BACKEND, "OPTIONS": {"directory": os.environ["DISTLOCK_TOY_DIRECTORY"]}},
}
matrix.MATRIX = (matrix.Entry("toy", BACKEND, None, fifo=False),)
