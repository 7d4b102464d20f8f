"""The test project's settings for the server processes."""

from __future__ import annotations

from testproject.settings import *  # noqa: F403
from tests.idempotency import MIDDLEWARE as SITE

MIDDLEWARE = ["tests.idempotency.served.outside", *SITE]
ROOT_URLCONF = "tests.idempotency.served"
# The credential of the requests stands for one that something above the view has checked.
DISTLOCK_IDEMPOTENCY = {**globals().get("DISTLOCK_IDEMPOTENCY", {}), "REPLAY_TO_CREDENTIALS": True}
