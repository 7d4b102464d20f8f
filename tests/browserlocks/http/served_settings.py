"""The settings of the server processes: the site of this folder, and a count of the requests."""

from __future__ import annotations

import json
import os

from django_distlock.browser.store import queue
from testproject.settings import *  # noqa: F403
from testproject.settings import MIDDLEWARE

ROOT_URLCONF = "tests.browserlocks.http.site"
ALLOWED_HOSTS = ["*"]
MIDDLEWARE = ["tests.browserlocks.http.crowd.CountingMiddleware", *MIDDLEWARE]
SESSION_SAVE_EVERY_REQUEST = True
queue.GRACE = float(os.environ.get("DISTLOCK_TEST_GRACE") or queue.GRACE)
DISTLOCK_BROWSER = json.loads(os.environ.get("DISTLOCK_TEST_BROWSER") or "{}")
