"""Settings of the demo and of the test suite; the databases and lock aliases are chosen in databases.py.

Environment:
DB, DISTLOCK_SERVICES, DISTLOCK_DEMO_DB, DISTLOCK_DEMO_TIMEOUT, DISTLOCK_TEST_SUFFIX   see databases.py
DISTLOCK_ATOMIC_REQUESTS=1        every request in a transaction (ATOMIC_REQUESTS)
DISTLOCK_CONN_MAX_AGE             seconds that a connection to the database is kept for later requests (CONN_MAX_AGE)
DISTLOCK_SITE_KEY                 the site key; without it `migrate` makes one and keeps it in the database
DISTLOCK_DEMO_HASH_ITERATIONS     rounds of the password hash: the work between a sign-up's check and its insert
DISTLOCK_DEMO_PAYMENT_SECONDS     how long an order's payment takes
"""

from __future__ import annotations

import os
from importlib.util import find_spec

from testproject.databases import caches, databases, lock_aliases

# Protects nothing: the demo listens on the loopback interface and holds made-up accounts.
SECRET_KEY = "demo-only-" + "not-a-secret" * 4
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "[::1]"]

DATABASES = databases()
DATABASES["default"]["ATOMIC_REQUESTS"] = os.environ.get("DISTLOCK_ATOMIC_REQUESTS") == "1"
DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ.get("DISTLOCK_CONN_MAX_AGE", "0"))
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

CACHES = caches()

DISTLOCK = lock_aliases(DATABASES, CACHES)
if site_key := os.environ.get("DISTLOCK_SITE_KEY"):
    DISTLOCK_SITE_KEY = site_key

# These scenes show parts of the package that can be taken out, and go with them.
SHOWN = {"articles": "editing", "orders": "idempotency", "tabs": "browser"}
OPTIONAL = [f"testproject.{app}" for app, part in SHOWN.items() if find_spec(f"django_distlock.{part}")]
ORDERS = "testproject.orders" in OPTIONAL

INSTALLED_APPS = [
    "django_distlock",
    *OPTIONAL,
    "testproject.registration",
    "testproject.replay",
    "testproject.scenes",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_distlock.middleware.LockBusyMiddleware",
    *(["django_distlock.idempotency.IdempotencyMiddleware"] if ORDERS else []),
]
ROOT_URLCONF = "testproject.urls"
# What `manage.py replay` acts out.
SCENES = [
    "testproject.registration.scene.Registration",
    "testproject.scenes.wallet.Wallet",
    "testproject.scenes.consumer.Consumer",
    "testproject.scenes.inventory.Inventory",
    "testproject.scenes.scheduler.Scheduler",
    *(["testproject.orders.scene.Orders"] if ORDERS else []),
]
CSRF_FAILURE_VIEW = "testproject.failures.csrf_failure"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
STATIC_URL = "static/"
MESSAGE_STORAGE = "django.contrib.messages.storage.cookie.CookieStorage"

# One hasher for sign-ups and for the admin, with its cost as a setting.
PASSWORD_HASHERS = ["testproject.registration.models.DemoPasswordHasher"]
PASSWORD_HASH_ITERATIONS = int(os.environ.get("DISTLOCK_DEMO_HASH_ITERATIONS") or 60_000)

PAYMENT_SECONDS = float(os.environ.get("DISTLOCK_DEMO_PAYMENT_SECONDS") or 1.5)

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"

# Django mails server errors to nobody when DEBUG is off; here they go to the server's own log.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "loggers": {"django.request": {"handlers": ["stderr"], "level": "ERROR", "propagate": False}},
}
