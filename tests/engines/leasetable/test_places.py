"""Where the leases are: in a file beside the SQLite database, whatever its name, or in tables."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.leasetable import LeaseTableBackend
from django_distlock.backends.leasetable.doctor import mounted_alone
from django_distlock.backends.leasetable.sqlite import lease_path
from django_distlock.manager.registry import registry
from tests.faults.conftest import database_alias
from tests.faults.server import ask

pytestmark = pytest.mark.usefixtures("databases")
USING = {"leasetable_postgres": "postgres", "leasetable_mariadb": "mariadb"}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The database of two releases, which have a link to it each."""
    database = tmp_path / "shared" / "db.sqlite3"
    for folder in ("shared", "r1", "r2"):
        (tmp_path / folder).mkdir()
    for release in ("r1", "r2"):
        (tmp_path / release / "db.sqlite3").symlink_to(database)
    return database


@pytest.mark.parametrize("exists", [True, False], ids=["existing", "dangling"])
def test_r1_every_spelling_of_a_database_has_the_same_leases(
    exists: bool, shared: Path, tmp_path: Path, name: str, monkeypatch: Any
) -> None:
    """Also before the first of them has made the database: SQLite makes it where the link leads to."""
    (tmp_path / "chain").symlink_to(tmp_path / "r2" / "db.sqlite3")
    (tmp_path / "current").symlink_to(tmp_path / "shared")
    if exists:
        shared.touch()
    monkeypatch.setitem(connections.settings["default"], "NAME", str(shared))
    with advisory_lock(name, using="leasetable"):
        for spelling in (
            *(f"{tmp_path}/{release}/db.sqlite3" for release in ("r1", "r2", "current", "r1/../shared")),
            f"{tmp_path}/chain",
            f"file:{tmp_path}/r1/db.sqlite3?mode=rwc",
            f"file:{tmp_path}/r1/db%2esqlite3",
            f"{os.path.relpath(tmp_path)}/r1/db.sqlite3",
        ):
            monkeypatch.setitem(connections.settings["default"], "NAME", spelling)
            other = LeaseTableBackend("leasetable", {})
            assert [info.name for info in other.inspect()] == [name], spelling
            other.close()
    assert [path.name for path in tmp_path.rglob("*-distlock")] == ["db.sqlite3-distlock"]


def test_the_file_is_beside_the_database() -> None:
    for name, path in (
        (":memory:", None),
        ("file::memory:?cache=shared", None),
        ("file:memorydb_default?mode=memory&cache=shared", None),
        ("file:/data/my%20db.sqlite3?cache=private", "/data/my db.sqlite3-distlock"),
        ("file:///data/db.sqlite3", "/data/db.sqlite3-distlock"),
        ("db.sqlite3", f"{os.getcwd()}/db.sqlite3-distlock"),
    ):
        assert lease_path(name) == path


def test_a_hard_link_is_told(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its second name nothing can be known but that it is there."""
    monkeypatch.setitem(connections.settings["default"], "NAME", str(tmp_path / "r1" / "db.sqlite3"))

    def found() -> list[str]:
        return [message.msg for message in run_checks(tags=["distlock"]) if message.id == "distlock.W046"]

    assert found() == [], "there is no file"
    shared.touch()
    assert found() == [], "one name, and links to it"
    os.link(shared, shared.parent / "again.sqlite3")
    messages = found()
    assert messages
    assert all(f"{os.path.realpath(shared)} has 2 names (hard links)" in message for message in messages)


# What `docker run -v /srv/db.sqlite3:/app/db.sqlite3` and `mount --bind` leave in /proc/self/mountinfo.
MOUNTS = """\
61 22 254:0 /srv/db.sqlite3 /app/db.sqlite3 rw,relatime - ext4 /dev/vda rw,discard
62 22 254:0 /srv/with\\040space /app/with\\040space rw,relatime - ext4 /dev/vda rw,discard
63 22 254:0 /srv/data /data rw,relatime - ext4 /dev/vda rw,discard
"""


def test_a_mount_of_the_file_alone_is_told() -> None:
    assert mounted_alone("/app/db.sqlite3", MOUNTS)
    assert mounted_alone("/app/with space", MOUNTS)
    assert not mounted_alone("/data/db.sqlite3", MOUNTS), "its leases are in the same directory"
    assert not mounted_alone("/srv/db.sqlite3", MOUNTS)


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The lease file that is going to be used."""
    monkeypatch.setitem(connections.settings["default"], "NAME", tmp_path / "db")
    return tmp_path / "db-distlock"


def test_r6_files_that_cannot_be_used(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = advisory_lock(name, using="leasetable")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(BackendUnavailable, match=r"made by a newer version .*format 3, known: 2"):
        lock.acquire()
    registry.close()
    path.write_bytes(b"x" * 5000)
    with pytest.raises(BackendUnavailable, match="db-distlock: file is not a database"):
        lock.acquire()
    registry.close()
    monkeypatch.setitem(connections.settings["default"], "NAME", path.parent / "missing" / "db")
    with pytest.raises(BackendUnavailable, match="unable to open database file"):
        lock.acquire()


def test_a_file_that_was_deleted_is_made_anew_and_is_as_private_as_files_are(path: Path, name: str) -> None:
    lock, before = advisory_lock(name, using="leasetable"), os.umask(0o077)
    try:
        lock.acquire().release()
        registry.close()
        for file in path.parent.glob("db-distlock*"):
            file.unlink()
        lock.acquire().release()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(before)


def test_a_link_in_the_place_of_the_file_leaves_its_target_alone(path: Path, name: str) -> None:
    """Whoever may write the directory would get any file of root's."""
    path.with_name("db").touch(0o666)
    target = path.with_name("secret")
    target.touch(0o600)
    path.symlink_to(target)
    advisory_lock(name, using="leasetable").acquire().release()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o600, 0o660, 0o664])
def test_who_may_write_the_database_may_take_locks(mode: int, path: Path, name: str) -> None:
    """Whoever takes the first lock makes the file: often root, for a job of cron."""
    database, nobody = path.with_name("db"), 65534
    database.touch()
    database.chmod(mode)
    if os.geteuid() == 0:
        os.chown(database, nobody, nobody)
    with advisory_lock(name, using="leasetable"):
        files = [each.stat() for each in path.parent.iterdir()]
    assert len(files) == 4
    assert {stat.S_IMODE(file.st_mode) for file in files} == {mode}
    assert len({(file.st_uid, file.st_gid) for file in files}) == 1


def test_r5_a_writer_that_stands_still_is_not_waited_for(path: Path, name: str) -> None:
    lock = advisory_lock(name, using="leasetable")
    lock.acquire().release()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN IMMEDIATE")
    with pytest.raises(BackendUnavailable, match="locked"):
        lock.acquire(timeout=1)
    writer.close()
    lock.acquire().release()


def open_lease_files() -> int:
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            found += os.readlink(link).endswith(("-distlock", "-distlock-wal", "-distlock-shm"))
    return found


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_r22_a_child_inherits_no_sqlite_connection(name: str) -> None:
    """POSIX locks are the process's: a connection inherited, or closed, would break the parent's."""
    with advisory_lock(name, using="leasetable"):
        assert open_lease_files() > 0
        pid = os.fork()
        if pid == 0:
            os._exit(open_lease_files())
        assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.parametrize("using", USING)
def test_r6_a_missing_table_names_the_command(using: str, name: str) -> None:
    database, lock = USING[using], advisory_lock(name, using=using)
    ask(database, "ALTER TABLE django_distlock_lease RENAME TO django_distlock_away")
    try:
        with pytest.raises(BackendUnavailable, match=f"`python manage.py migrate --database={database}`"):
            lock.acquire()
    finally:
        ask(database, "ALTER TABLE django_distlock_away RENAME TO django_distlock_lease")
    lock.acquire().release()


def test_behind_a_pooler(name: str, alias: Any) -> None:
    """One that gives each statement another session does no harm to rows."""
    with database_alias("pooled", "pgbouncer") as database:
        alias("pooled", "leasetable", database=database)
        for _ in range(20):
            with advisory_lock(name, using="pooled") as lease:
                lease.ensure_held()
        registry.close()


def test_other_databases_are_refused_with_what_to_use(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    """By the first lock and by the system check, with DISTLOCK or without."""
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    monkeypatch.setattr(connections["default"], "display_name", "Oracle")
    for distlock in ({}, {"default": {"BACKEND": settings.DISTLOCK["leasetable"]["BACKEND"]}}):
        settings.DISTLOCK = distlock
        with pytest.raises(ImproperlyConfigured, match=r"is Oracle.*Redis.*ZooKeeper"):
            advisory_lock("any").acquire()
        assert [message.id for message in run_checks(tags=["distlock"]) if "is Oracle" in message.msg]
