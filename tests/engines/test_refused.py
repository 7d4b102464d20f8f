"""R6: each engine with a wrong password, without a server, on the wrong kind of database, without its driver."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_distlock import BackendUnavailable, advisory_lock, held_locks
from django_distlock.manager.registry import registry
from tests.faults.conftest import database_alias
from tests.support import services

pytestmark = pytest.mark.usefixtures("databases")
DATABASES = {
    "postgres": "postgres",
    "mysql": "mariadb",
    "leasetable_postgres": "postgres",
    "leasetable_mariadb": "mariadb",
}
CANARY = "wrong-canary-password"


def refused(using: str, name: str, match: str) -> None:
    """Sync and async, and who is listed; none of it tells the password."""
    lock = advisory_lock(name, using=using)
    for work in (lambda: lock.acquire(timeout=20), lambda: asyncio.run(lock.aacquire(timeout=20))):
        with pytest.raises(BackendUnavailable, match=match) as caught:
            work()
        assert caught.value.__cause__ is not None
        assert CANARY not in f"{caught.value!r} {caught.value.__cause__!r}"
    (report,) = held_locks(using)
    assert report.error
    registry.close()


@pytest.mark.parametrize("using", DATABASES)
@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"PASSWORD": CANARY}, "password authentication failed|Access denied"),
        ({"PORT": "1", "PASSWORD": CANARY}, "refused|[cC]onnect"),
    ],
    ids=["wrong password", "nobody listens"],
)
def test_r6_a_database_that_cannot_be_used(
    settings: Any, name: str, using: str, changes: dict[str, Any], match: str
) -> None:
    with database_alias("stranger", DATABASES[using], **changes) as alias:
        options = {"database": alias}
        if not using.startswith("leasetable"):
            options = {"database": DATABASES[using], "session_database": alias}
        settings.DISTLOCK = {**settings.DISTLOCK, using: {**settings.DISTLOCK[using], "OPTIONS": options}}
        refused(using, name, match)


@pytest.mark.parametrize("using", ["redis", "redlock"])
@pytest.mark.parametrize("nobody", [False, True], ids=["wrong password", "nobody listens"])
def test_r6_a_redis_that_cannot_be_used(settings: Any, name: str, using: str, nobody: bool) -> None:
    ports = [1 if nobody else services.load()[f"redis{number}"]["port"] for number in (1, 2, 3)]
    urls = [f"redis://:{CANARY}@127.0.0.1:{port}/0" for port in ports]
    options = {"url": urls[0]} if using == "redis" else {"nodes": [f"{url}?x={n}" for n, url in enumerate(urls)]}
    settings.DISTLOCK = {**settings.DISTLOCK, using: {**settings.DISTLOCK[using], "OPTIONS": options}}
    refused(using, name, "reached|failed|password|invalid")


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_the_wrong_kind_of_database_is_named(settings: Any, name: str, using: str) -> None:
    backend = {**settings.DISTLOCK[using], "OPTIONS": {"database": "default"}}
    settings.DISTLOCK = {**settings.DISTLOCK, using: backend}
    with pytest.raises(ImproperlyConfigured, match=rf"DISTLOCK\['{using}'\]: .*'default' is sqlite, not "):
        advisory_lock(name, using=using).acquire()


@pytest.mark.parametrize(
    ("driver", "module", "extra"), [("psycopg", "postgres", "postgres"), ("MySQLdb", "mysql", "mysql")]
)
def test_a_missing_driver_names_the_extra(driver: str, module: str, extra: str) -> None:
    code = f"""
import sys
sys.modules[{driver!r}] = None
from django.core.exceptions import ImproperlyConfigured
try:
    import django_distlock.backends.{module}.backend
except ImproperlyConfigured as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert f"pip install 'django-distlock[{extra}]'" in done.stdout, done.stderr
