"""MySQL and MariaDB: what GET_LOCK answers when it is not 1, and what an administrator may have set."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_distlock import BackendUnavailable, LockTimeout, advisory_lock, held_locks
from django_distlock.concurrency.clock import monotonic
from django_distlock.concurrency.flow import run
from django_distlock.manager.registry import registry
from django_distlock.records import Claim
from tests.conftest import eventually
from tests.engines.actors import hold, share_and_write
from tests.faults.conftest import database_alias
from tests.faults.server import (
    ask,
    asked,
    cancel_statement,
    holders,
    is_mariadb,
    key_of,
    session_exists,
    session_of,
    statement_limit,
    user_locks,
    waiters,
)
from tests.support.processes import Child
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.usefixtures("databases")

BACKEND = "django_distlock.backends.mysql.NamedLockBackend"


def on(settings: Any, database: str, **options: Any) -> None:
    """Let the lock alias "mysql" use another database alias."""
    settings.DISTLOCK = {
        **settings.DISTLOCK,
        "mysql": {"BACKEND": BACKEND, "OPTIONS": {"database": database, **options}},
    }


@pytest.fixture
def init_command(databases: None, settings: Any) -> Iterator[Callable[[str], str]]:
    """A database alias whose sessions begin with a statement, as an administrator may have it."""
    options = connections.settings["mariadb"]["OPTIONS"]
    with database_alias("tuned", "mariadb", OPTIONS=options) as alias:

        def tune(statement: str) -> str:
            connections.settings[alias]["OPTIONS"] = {**options, "init_command": statement}
            on(settings, "mariadb", session_database=alias)
            return alias

        yield tune
        registry.close()


def test_null_is_not_acquired(init_command: Callable[[str], str], name: str) -> None:
    """Only 1 means acquired. MariaDB gives a real NULL for a name that is NULL; three of them are an error. MySQL says
    at once that it is one."""
    init_command("SET sql_mode = 'PIPES_AS_CONCAT'")  # for every session: on a slow machine some end, and others open
    backend = registry.entry("mysql").backend
    key = key_of("mysql", name)
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        assert advisory_lock(name, using="mysql").try_acquire(timeout=0.5) is None
        child.say()
        assert child.hear() == "released"
    key.__dict__["text_bytes"] = b"' || NULL || '"
    with pytest.raises(BackendUnavailable, match="NULL"):
        backend.try_acquire(Claim(key=key))
    if not is_mariadb():
        with pytest.raises(BackendUnavailable, match="lock name 'NULL'"):
            backend.try_acquire(Claim(key=key), 2)
        return
    took = None
    while took is None:  # on a slow machine it may be too long ago that it was busy
        began = monotonic()
        backend._busy.add(key.digest, began)  # what is known to be busy is waited for at once
        with contextlib.suppress(BackendUnavailable):
            assert backend.try_acquire(Claim(key=key), 0.2) is None
            took = monotonic() - began
    within(took, 0.25)


def a_waiter(name: str) -> int:
    found: list[int] = []
    # one look: whoever was just cancelled may not wait at the next one
    eventually(lambda: found.extend(waiters("mysql", name)) or found, "nobody waits")
    return found[0]


@pytest.mark.parametrize("hot", [False, True])
def test_kill_query_does_not_end_the_wait(name: str, hot: bool) -> None:
    """KILL QUERY on GET_LOCK is an error or NULL, neither a grant nor the end: the caller waits on to his deadline."""
    got: list[list[int]] = []

    def wait() -> None:
        with advisory_lock(name, using="mysql", timeout=10):
            got.append(holders("mysql", name))
        connections.close_all()

    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        if hot:
            assert advisory_lock(name, using="mysql").try_acquire(timeout=0.5) is None
        thread = threading.Thread(target=wait)
        thread.start()
        for _ in range(5):
            cancel_statement("mysql", a_waiter(name))
            assert not got
        child.say()
        assert child.hear() == "released"
        thread.join(10)
    assert len(got[0]) == 1
    assert not holders("mysql", name)


def test_r5_max_statement_time_on_a_wait_keeps_the_deadline(name: str) -> None:
    """R5: a limit that cuts each GET_LOCK after 0.1 s makes neither a grant nor a shorter wait."""
    tight = "SET {} = {}".format(*statement_limit(0.1))
    registry.reset()  # the sessions of other tests may have been killed
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        with pytest.raises(LockTimeout):
            advisory_lock(name, using="mysql").acquire(timeout=0.5)
        for session in registry.entry("mysql").backend.sessions.all():
            asked(session, tight.encode())
        began = monotonic()
        with pytest.raises(LockTimeout):
            advisory_lock(name, using="mysql").acquire(timeout=0.6)
        within(monotonic() - began, 0.65, least=0.6)
        child.say()
        assert child.hear() == "released"
    with advisory_lock(name, using="mysql"):
        assert len(holders("mysql", name)) == 1


def test_max_statement_time_of_the_server_does_not_count(init_command: Callable[[str], str], name: str) -> None:
    variable, value = statement_limit(0.1)
    alias = init_command(f"SET SESSION {variable} = {value}")
    assert ask(alias, f"SELECT @@{variable}")[0][0] == value
    with Child(hold, "mysql", name) as child:
        assert child.hear() == "held"
        threading.Timer(0.4, child.say).start()
        with advisory_lock(name, using="mysql", timeout=5) as lease:
            assert asked(session_of(lease), f"SELECT @@{variable}".encode())[0][0] == 0
        assert child.hear() == "released"


def test_r7_null_that_came_after_the_grant_leaves_nothing_held(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A statement that is killed may have had its effect: the name is given back in any case."""
    entry: Any = registry.entry("mysql")
    key, sessions = entry.key(name), entry.backend.sessions
    session = run(sessions.lend(monotonic() + 5))
    session.used_at = monotonic() + 60  # not idle, however busy the machine is
    monkeypatch.setattr(
        type(session), "_waiting", lambda session, text, until: b"SELECT IF(GET_LOCK('%s', 0) = 1, NULL, 0)" % text
    )
    try:
        assert run(session.wait(key, False, monotonic() + 5)) is False
        assert not holders("mysql", name)
        assert session.wait_fast(key, False, monotonic() + 5) is False
        assert not holders("mysql", name)
    finally:
        sessions.give_back(session)


def test_r17_a_short_wait_timeout_of_the_server_does_not_free_the_lock(
    init_command: Callable[[str], str], name: str
) -> None:
    """wait_timeout ends the session of an idle holder without a word: shown on a plain connection first."""
    alias = init_command("SET SESSION wait_timeout = 1")
    with advisory_lock(name, using="mysql") as lease:
        # after ours, which has been silent for longer when this one is ended
        naive = ask(alias, "SELECT CONNECTION_ID(), GET_LOCK('naive-wait-timeout', 0)")[0][0]
        eventually(lambda: not session_exists("mysql", naive), "wait_timeout does not end the plain connection")
        assert not user_locks("naive-wait-timeout")
        lease.ensure_held()
        assert holders("mysql", name) == [session_of(lease).server_id]


@pytest.mark.parametrize(
    "spelling",
    [
        "Ünïcödé ∑ \N{GRINNING FACE}",
        "x" * 512,
        "UPPER lower",
        "nul\x00byte",
        "quote'\"; --",
        "trailing  ",
        "%s/%d",
        "\ud800",
    ],
)
def test_r3_the_server_sees_at_most_sixty_ascii_characters(spelling: str) -> None:
    """R3: MySQL folds case and cuts at 64, MariaDB cuts at a NUL byte; the keyed hash stands at the end."""
    with advisory_lock(spelling, using="mysql"):
        text = key_of("mysql", spelling).text
        assert len(holders("mysql", spelling)) == 1
    assert len(text) <= 60
    assert text == text.lower()
    assert text.isascii()
    assert all(character.isalnum() or character == "-" for character in text)


def test_held_locks_shows_holders_and_waiters_of_all_processes(name: str) -> None:
    with Child(hold, "mysql", name) as holder:
        assert holder.hear() == "held"
        with Child(share_and_write, "mysql", name) as waiter:
            assert waiter.hear() == "asking"
            eventually(lambda: waiters("mysql", name), "nobody waits")
            (report,) = held_locks("mysql")
            info = next(info for info in report.locks if info.key == key_of("mysql", name).text)
            assert report.error is None
            assert info.waiters == 1
            assert info.details["connection"] == str(holders("mysql", name)[0])
            assert info.details["connection"] in str(info.holder)
            holder.say()
            assert holder.hear() == "released"
            assert waiter.hear()
            waiter.say()


@pytest.fixture
def plain_user(databases: None, settings: Any) -> Iterator[str]:
    """A user who may use the database and see nothing of the server."""
    user = f"distlock_plain_{os.getpid()}"
    ask("mysql", f"CREATE USER '{user}'@'127.0.0.1' IDENTIFIED BY 'plain'")
    ask("mysql", f"GRANT SELECT, INSERT ON `{connections['mariadb'].settings_dict['NAME']}`.* TO '{user}'@'127.0.0.1'")
    with database_alias("plain", "mariadb", USER=user, PASSWORD="plain"):
        on(settings, "plain")
        yield user
        registry.close()
    ask("mysql", f"DROP USER '{user}'@'127.0.0.1'")


def test_held_locks_without_privileges_shows_the_names_that_this_process_knows(plain_user: str, name: str) -> None:
    with advisory_lock(name, using="mysql") as lease:
        (report,) = held_locks("mysql")
        assert report.error is None
        info = next(info for info in report.locks if info.name == name)
        assert str(session_of(lease).server_id) in str(info.holder)
    (report,) = held_locks("mysql")
    assert name not in [info.name for info in report.locks]


def test_r6_a_wrong_password_is_unavailable_with_the_servers_words(settings: Any, name: str) -> None:
    with database_alias("stranger", "mariadb", PASSWORD="wrong-canary-password"):
        on(settings, "mariadb", session_database="stranger")
        with pytest.raises(BackendUnavailable, match="Access denied") as caught:
            advisory_lock(name, using="mysql").acquire(timeout=1)
        assert type(caught.value.__cause__).__module__.startswith("MySQLdb")
        assert "wrong-canary-password" not in f"{caught.value!r} {caught.value.__cause__!r}"
        (report,) = held_locks("mysql")
        assert report.error == "OperationalError"


def test_r6_nobody_listening_is_unavailable_at_once(settings: Any, name: str) -> None:
    with database_alias("nobody", "mariadb", PORT="1"):
        on(settings, "mariadb", session_database="nobody")
        began = monotonic()
        with pytest.raises(BackendUnavailable, match="connect"):
            advisory_lock(name, using="mysql").acquire(timeout=5)
        within(monotonic() - began, 1)


def test_the_wrong_kind_of_database_is_named(settings: Any, name: str) -> None:
    on(settings, "default")
    with pytest.raises(ImproperlyConfigured, match=r"DISTLOCK\['mysql'\]: .*'default' is sqlite, not MySQL"):
        advisory_lock(name, using="mysql").acquire()
