"""A copy of the database has the row of the site key too: its locks are others, on each server that both can reach."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.db import connections

from django_distlock import advisory_lock
from tests.support.processes import Child

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.usefixtures("databases")]
IN_MEMORY = "file:memorydb_default_%d?mode=memory&cache=shared"
TABLE = "django_distlock_sitekey"
# Engines whose locks belong to a server that several databases share.
SHARED = ["mysql", "redis", "redlock", "zookeeper"]


def hold(link: Any, vendor: str, database: str, using: str, name: str) -> None:
    """In a child whose default database is ``database``, on the server of the alias ``vendor``: is the lock free?"""
    settings.DISTLOCK_SITE_KEY = None
    use(vendor, database)
    take(link, using, name)


def hold_with_setting(link: Any, vendor: str, database: str, name: str) -> None:
    use(vendor, database)
    take(link, "redis", name)


def use(vendor: str, database: str) -> None:
    connections["default"].close()
    connections.settings["default"] = {**connections.settings[vendor], "NAME": database}
    del connections["default"]
    if vendor == "default":
        with connections["default"].cursor() as cursor:
            cursor.execute(f"CREATE TABLE {TABLE} (id integer, site_key varchar(128))")
            cursor.execute(f"INSERT INTO {TABLE} VALUES (1, 'the same row in both of them')")


def take(link: Any, using: str, name: str) -> None:
    lease = advisory_lock(name, using=using).try_acquire()
    link.say("held" if lease else "busy")
    link.hear()
    if lease:
        lease.release()
    link.say("released")


def execute(vendor: str, *statements: str) -> None:
    with connections[vendor].cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture(params=["default", "postgres", "mariadb"])
def copied(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, str]]:
    """The alias of a server, a database there, and its copy. On SQLite: in memory, as in tests."""
    vendor: str = request.param
    if vendor == "default":
        yield vendor, IN_MEMORY % 1, IN_MEMORY % 2
        return
    original = str(connections[vendor].settings_dict["NAME"])
    copy = f"distlock_copy_{os.getpid()}"
    execute(vendor, f"CREATE DATABASE {copy}")
    try:
        copy_row(vendor, copy)
        yield vendor, original, copy
    finally:
        execute(vendor, f"DROP DATABASE {copy}")


def copy_row(vendor: str, copy: str) -> None:
    with connections[vendor].cursor() as cursor:
        cursor.execute(f"SELECT site_key FROM {TABLE}")
        row = cursor.fetchone()
    other: Any = connections.create_connection(vendor)
    other.settings_dict = {**other.settings_dict, "NAME": copy}
    try:
        with other.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {TABLE} (id integer, site_key varchar(128))")
            cursor.execute(f"INSERT INTO {TABLE} VALUES (1, %s)", row)
    finally:
        other.close()


@pytest.mark.parametrize("using", SHARED)
def test_a_copy_does_not_take_the_locks_of_the_original(copied: tuple[str, str, str], using: str, name: str) -> None:
    """Staging restored from a dump of production, and the databases of `manage.py test --parallel`."""
    vendor, original, copy = copied
    with Child(hold, vendor, original, using, name) as production:
        assert production.hear() == "held"
        for database, found in ((copy, "held"), (original, "busy")):
            with Child(hold, vendor, database, using, name) as other:
                assert other.hear() == found
                other.say()
                assert other.hear() == "released"
        production.say()
        assert production.hear() == "released"


def fork(link: Any, vendor: str, original: str, copy: str, name: str) -> None:
    """In a child: hold a lock, then fork. The fork has the copy as its default database."""
    settings.DISTLOCK_SITE_KEY = None
    use(vendor, original)
    with advisory_lock(name, using="redis"):
        reader, writer = os.pipe()
        if os.fork() == 0:
            use(vendor, copy)
            os.write(writer, b"busy" if advisory_lock(name, using="redis").try_acquire() is None else b"held")
            os._exit(0)
        os.close(writer)
        link.say(os.read(reader, 4).decode())
        os.wait()


def test_processes_that_are_forked_for_a_copy(copied: tuple[str, str, str], name: str) -> None:
    """As `manage.py test --parallel` does, after a migration that has taken a lock."""
    with Child(fork, *copied, name) as child:
        assert child.hear() == "held"


def test_the_setting_is_the_key_whatever_the_database(copied: tuple[str, str, str], name: str) -> None:
    """Several databases of one project share locks on purpose."""
    vendor, original, copy = copied
    with Child(hold_with_setting, vendor, original, name) as one:
        assert one.hear() == "held"
        with Child(hold_with_setting, vendor, copy, name) as other:
            assert other.hear() == "busy"
            other.say()
            assert other.hear() == "released"
        one.say()
        assert one.hear() == "released"
