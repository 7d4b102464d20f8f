"""The test project with its admin in the clothes of another package: DISTLOCK_TEST_THEME, the name of its app."""

from __future__ import annotations

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = [os.environ["DISTLOCK_TEST_THEME"], *INSTALLED_APPS]
ROOT_URLCONF = "tests.operations.admin.themed"
DISTLOCK = {
    "default": {"BACKEND": "django_distlock.backends.memory.MemoryBackend"},
    "leases": {"BACKEND": "django_distlock.backends.leasetable.LeaseTableBackend"},
    "absent": {
        "BACKEND": "django_distlock.backends.redis.RedisBackend",
        "OPTIONS": {"url": "redis://127.0.0.1:1/0"},
    },
}
