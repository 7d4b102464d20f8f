"""The test project with its admin in the clothes of another package: DISTLOCK_TEST_THEME, the name of its app."""

from __future__ import annotations

import os

from tests.operations.world import DOWN, MEMORY
from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [os.environ["DISTLOCK_TEST_THEME"], *INSTALLED_APPS]
LEASES = {"BACKEND": "django_distlock.backends.leasetable.LeaseTableBackend"}
DISTLOCK = {"default": MEMORY, "leases": LEASES, "absent": DOWN}
