"""One SQLite database under several names: SQLite resolves links, so the leases must be beside what they lead to."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.db import connections

from django_distlock import advisory_lock
from django_distlock.backends.leasetable.doctor import mounted_alone
from django_distlock.backends.leasetable.sqlite import lease_path
from tests.support.processes import Child

ROUNDS = 60


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The database of two releases, which have a link to it each."""
    database = tmp_path / "shared" / "db.sqlite3"
    for folder in ("shared", "r1", "r2"):
        (tmp_path / folder).mkdir()
    for release in ("r1", "r2"):
        (tmp_path / release / "db.sqlite3").symlink_to(database)
    return database


def count(link: Any, database: str, counter: str) -> None:
    """In a child: add ROUNDS to the number in a file, with the lock around each read and write."""
    settings.DISTLOCK_SITE_KEY = "the same in all releases of one site"
    connections.settings["default"]["NAME"] = database
    lock = advisory_lock("the same", using="leasetable", timeout=60)
    link.say("ready")
    link.hear()
    for _ in range(ROUNDS):
        with lock:
            number = int(Path(counter).read_text())
            time.sleep(0.0005)
            Path(counter).write_text(str(number + 1))
    link.say("done")


def test_r1_two_releases_with_a_link_each_exclude_each_other(databases: None, shared: Path, tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    with ExitStack() as stack:
        paths = [str(tmp_path / release / "db.sqlite3") for release in ("r1", "r2")]
        children = [stack.enter_context(Child(count, path, str(counter))) for path in paths]
        assert [child.hear() for child in children] == ["ready", "ready"]
        for child in children:
            child.say("go")
        assert [child.hear() for child in children] == ["done", "done"]
    assert int(counter.read_text()) == 2 * ROUNDS
    assert [path.name for path in tmp_path.rglob("*-distlock")] == ["db.sqlite3-distlock"]


SPELLINGS = {
    "a link": "r1/db.sqlite3",
    "another link": "r2/db.sqlite3",
    "a link to a link": "chain",
    "a linked directory": "current/db.sqlite3",
    "by way of the parent": "r1/../shared/db.sqlite3",
    "a URI": "file:{folder}/r1/db.sqlite3?mode=rwc",
    "a URI with an escape": "file:{folder}/r1/db%2esqlite3",
    "relative": "{relative}/r1/db.sqlite3",
}


@pytest.mark.parametrize("exists", [True, False], ids=["existing", "dangling"])
@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_every_spelling_has_the_same_leases(spelling: str, exists: bool, shared: Path, tmp_path: Path) -> None:
    """Also before the first of them has made the database: SQLite makes it where the link leads to."""
    (tmp_path / "chain").symlink_to(tmp_path / "r2" / "db.sqlite3")
    (tmp_path / "current").symlink_to(tmp_path / "shared")
    if exists:
        shared.touch()
    name = spelling.format(folder=tmp_path, relative=os.path.relpath(tmp_path))
    if not spelling.startswith(("file:", "{")):
        name = f"{tmp_path}/{name}"
    assert lease_path(name) == f"{os.path.realpath(shared)}-distlock"


@pytest.fixture
def on_sqlite(shared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(connections.settings["default"], "NAME", str(shared.parents[1] / "r1" / "db.sqlite3"))
    return shared


def found() -> list[str]:
    return [message.msg for message in run_checks(tags=["distlock"]) if message.id == "distlock.W046"]


def test_a_hard_link_is_told(on_sqlite: Path) -> None:
    """Of its second name nothing can be known but that it is there."""
    assert found() == [], "there is no file"
    on_sqlite.touch()
    assert found() == [], "one name, and links to it"
    os.link(on_sqlite, on_sqlite.parent / "again.sqlite3")
    messages = found()
    assert messages
    assert all(f"{os.path.realpath(on_sqlite)} has 2 names (hard links)" in message for message in messages)


# What `docker run -v /srv/db.sqlite3:/app/db.sqlite3` and `mount --bind` leave in /proc/self/mountinfo.
MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
61 22 254:0 /srv/db.sqlite3 /app/db.sqlite3 rw,relatime - ext4 /dev/vda rw,discard
62 22 254:0 /srv/with\\040space /app/with\\040space rw,relatime - ext4 /dev/vda rw,discard
63 22 254:0 /srv/data /data rw,relatime - ext4 /dev/vda rw,discard
"""


def test_a_mount_of_the_file_alone_is_told() -> None:
    assert mounted_alone("/app/db.sqlite3", MOUNTS)
    assert mounted_alone("/app/with space", MOUNTS)
    assert not mounted_alone("/data/db.sqlite3", MOUNTS), "its leases are in the same directory"
    assert not mounted_alone("/srv/db.sqlite3", MOUNTS)
