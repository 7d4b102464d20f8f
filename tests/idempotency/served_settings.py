"""The test project's settings for the server processes."""

from __future__ import annotations

from testproject.settings import *  # noqa: F403

MIDDLEWARE = [
    "tests.idempotency.served.Outside",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_distlock.idempotency.IdempotencyMiddleware",
    "tests.idempotency.served.Inside",
]
ROOT_URLCONF = "tests.idempotency.served"
# The credential of the requests stands for one that something above the view has checked.
DISTLOCK_IDEMPOTENCY = {**globals().get("DISTLOCK_IDEMPOTENCY", {}), "REPLAY_TO_CREDENTIALS": True}
