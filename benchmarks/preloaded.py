"""What the server of `crew` imports once, before it forks the workers: Django, the entries and the drivers.

Starting a hundred interpreters that each import these would take longer than measuring does.
"""

from __future__ import annotations

import contextlib
import gc
import importlib

import django

DRIVERS = ("psycopg", "MySQLdb", "redis", "kazoo.client", "pglock", "django_mysql.locks")
LOCKS = ("redis_lock", "pottery", "sherlock", "django_distlock")

django.setup()
for name in ("benchmarks.entries", *DRIVERS, *LOCKS):
    with contextlib.suppress(ImportError):  # an absent peer fails where it is opened
        importlib.import_module(name)
gc.freeze()  # the workers share these pages; a collection would copy them
