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

pytestmark = pytest.mark.usefixtures("databases")
IN_MEMORY = "file:memorydb_default_%d?mode=memory&cache=shared"
TABLE = "django_distlock_sitekey"


def ask(link: Any, vendor: str, database: str, using: str, name: str, by_setting: bool) -> None:
    """In a child whose default database is ``database``, on the server of the alias ``vendor``: is the lock free?"""
    settings.DISTLOCK_SITE_KEY = settings.DISTLOCK_SITE_KEY if by_setting else None
    use(vendor, database)
    lease = advisory_lock(name, using=using).try_acquire()
    link.say("held" if lease else "busy")
    link.hear()
    if lease:
        lease.release()


def use(vendor: str, database: str) -> None:
    connections["default"].close()
    connections.settings["default"] = {**connections.settings[vendor], "NAME": database}
    del connections["default"]
    if vendor == "default":
        make_row(connections["default"], "the same row in both of them")


def make_row(connection: Any, key: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} (id integer, site_key varchar(128))")
        cursor.execute(f"INSERT INTO {TABLE} VALUES (1, %s)", [key])


@pytest.fixture(params=["default", "postgres", "mariadb"])
def copied(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, str]]:
    """The alias of a server, a database there, and its copy. On SQLite: in memory, as in tests."""
    vendor: str = request.param
    if vendor == "default":
        yield vendor, IN_MEMORY % 1, IN_MEMORY % 2
        return
    copy = f"distlock_copy_{os.getpid()}"
    with connections[vendor].cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {copy}")
        try:
            cursor.execute(f"SELECT site_key FROM {TABLE}")
            ((key,),) = cursor.fetchall()
            other: Any = connections.create_connection(vendor)
            other.settings_dict = {**other.settings_dict, "NAME": copy}
            make_row(other, key)
            other.close()
            yield vendor, str(connections[vendor].settings_dict["NAME"]), copy
        finally:
            cursor.execute(f"DROP DATABASE {copy}")


def test_a_copy_does_not_take_the_locks_of_the_original(copied: tuple[str, str, str], name: str) -> None:
    """Staging restored from a dump of production, and the databases of `manage.py test --parallel`. With a setting
    several databases of one project share locks on purpose."""
    vendor, original, copy = copied
    using = {"default": "redis", "postgres": "zookeeper", "mariadb": "mysql"}[vendor]  # locks that belong to a server
    for by_setting, expected in ((False, {copy: "held", original: "busy"}), (True, {copy: "busy"})):
        with Child(ask, vendor, original, using, name, by_setting) as production:
            assert production.hear() == "held"
            for database, found in expected.items():
                with Child(ask, vendor, database, using, name, by_setting) as other:
                    assert other.hear() == found
                    other.say()
            production.say()


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


@pytest.mark.parametrize("copied", ["default", "postgres"], indirect=True)
def test_processes_that_are_forked_for_a_copy(copied: tuple[str, str, str], name: str) -> None:
    """As `manage.py test --parallel` does, after a migration that has taken a lock."""
    with Child(fork, *copied, name) as child:
        assert child.hear() == "held"
