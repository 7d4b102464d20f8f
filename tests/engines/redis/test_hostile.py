"""What a server, its operator or another client may do to leases in Redis against all expectation."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks

from django_distlock import BackendUnavailable, advisory_lock
from django_distlock.backends.redis import connection
from django_distlock.backends.redis.backend import RedisBackend
from django_distlock.backends.redis.commands import keys_of
from django_distlock.concurrency.flow import run
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redis.server import BACKEND, Own, claim_of, waiters
from tests.engines.redis.test_processes import queue
from tests.faults.proxy import Proxy
from tests.support.processes import Child

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")
USING = "redis"


def test_an_account_that_may_not_listen_gets_no_wrong_replies(own: Own, name: str) -> None:
    """The refusal of SUBSCRIBE is a reply, too; the reply to the script that follows it must not be taken for that of
    the next one."""
    own.client.acl_setuser("mute", enabled=True, nopass=True, keys=["distlock:*"], commands=["+@all"], reset=True)
    backend = RedisBackend("mute", {"url": own.url.replace("redis://", "redis://mute:x@")})
    with own.held(name):
        for _ in range(3):
            with pytest.raises(BackendUnavailable, match="does not let us listen"):
                backend.try_acquire(claim_of(name), 0.1)
            assert backend.try_acquire(claim_of(name)) is None
            grant = backend.try_acquire(claim_of(name + "other"))
            assert grant is not None
            assert backend.verify(grant)
            assert backend.release(grant)
    backend.close()


def test_a_demoted_server_is_left(own: Own, name: str, tmp_path: Path) -> None:
    """Behind one address that moves on to its replica. Connections to the old one stay open and refuse to write."""
    (tmp_path / "other").mkdir()
    with Own(tmp_path / "other") as other, Proxy("127.0.0.1", own.port) as proxy:
        backend = RedisBackend("moving", {"url": f"redis://127.0.0.1:{proxy.port}/0"})
        grants = [backend.try_acquire(claim_of(f"{name}{number}"), 1) for number in range(2)]
        connections = [run(backend.pool.get(time.monotonic() + 5)) for _ in range(5)]
        for connection in connections:
            backend.pool.give(connection)
        other.client.config_set("repl-diskless-sync-delay", 0)
        own.client.replicaof("127.0.0.1", other.port)
        proxy.target = ("127.0.0.1", other.port)
        grant = backend.try_acquire(claim_of(name), 1)
        assert grant is not None
        assert backend.release(grant)
        assert other.keys() == ["fence"]
        assert all(grants)
        backend.close()


def test_r4_a_dead_writer_does_not_keep_readers_out(name: str) -> None:
    """Nothing is released: the caller that asks must notice by itself that the first waiter is gone."""
    with advisory_lock(name, using=USING, shared=True), Child(queue, name) as dying:
        assert dying.hear() == "asking"
        eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
        dying.kill()
        got: list[object] = []

        def read() -> None:
            with advisory_lock(name, using=USING, shared=True, timeout=1):
                got.append("in")

        thread = threading.Thread(target=read)
        thread.start()
        thread.join(5)
        assert got == ["in"]


def test_junk_on_a_waiters_channel(name: str, own: Own) -> None:
    with own.held(name):
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(advisory_lock(name, using=USING).try_acquire(5)))
        thread.start()
        eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
        for channel in own.client.pubsub_channels("distlock:*"):
            for junk in (b"", b"junk", b"a b c", b"x 1 2 3"):
                own.client.publish(channel, junk)
        who = own.client.zrange(keys_of(registry.entry(USING).key(name))[1], 0, 0)[0]
        for channel in own.client.pubsub_channels("distlock:*"):
            own.client.publish(channel, who + b" x y")
            # a grant, and one of this moment, but another waiter's
            now, micros = own.client.time()
            own.client.publish(channel, b"x%032d %d %d" % (7, 2**50, now * 1_000_000 + micros))
        thread.join(0.3)
        assert not found, "what was said to another waiter was taken for a grant"
        own.let_go()
        thread.join(5)
    assert found
    found[0].release()


@pytest.mark.parametrize("value", [b"inf", b"nan", b"1e400", b"9" * 40, b"-5", b"junk", b"0x7fffffffffffffff"])
def test_r21_a_damaged_fence(own: Own, name: str, value: bytes) -> None:
    own.client.set(keys_of(registry.entry(USING).key(name))[3], value)
    fences = []
    for _ in range(3):
        with advisory_lock(name, using=USING) as lease:
            fences.append(lease.fence)
    assert fences == sorted(set(fences))
    assert all(0 < fence < 2**63 for fence in fences)


def test_a_queue_that_somebody_deleted(own: Own, name: str) -> None:
    with own.held(name):
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(advisory_lock(name, using=USING).try_acquire(5)))
        thread.start()
        eventually(lambda: waiters(USING, name) == 1, "there is no waiter")
        keys = keys_of(registry.entry(USING).key(name))
        own.client.delete(keys[1])
        own.client.client_kill_filter(_type="pubsub")
        eventually(lambda: own.client.zcard(keys[1]) == 1, "it is not in the queue")
        own.let_go()
        thread.join(5)
    found[0].release()


def test_a_damaged_name_can_be_broken(own: Own) -> None:
    own.client.hset(b"distlock:{\xff\xfe}:held", b"x\xffsomebody", "junk")
    (info,) = registry.entry(USING).backend.inspect()
    assert info.key.encode("utf-8")
    assert registry.entry(USING).backend.break_lock(info)
    assert own.keys() == []


@pytest.mark.parametrize(
    "options",
    [
        {"url": "redis://:s3cr/et@localhost:6379/0"},
        {"url": "redis://:s3cr#et@localhost:6379/0"},
        {"url": "redis://user:s3cr:et@[localhost/0"},
        {"url": "s3cr://user:et@localhost/0"},
        {"url": 5},
        {"url": b"redis://localhost"},
        {"url": ""},
        {"cache": 5},
        {"cache": None},
    ],
)
def test_bad_options_are_told_without_secrets(settings: Any, options: dict[str, Any]) -> None:
    settings.DISTLOCK = {"r": {"BACKEND": BACKEND, "OPTIONS": options}}
    found = run_checks(tags=["distlock"])
    assert [each.id for each in found] == ["distlock.E003"]
    assert "s3cr" not in str(found)
    with pytest.raises(BackendUnavailable) as caught:
        advisory_lock("x", using="r").acquire(timeout=0)
    error: BaseException | None = caught.value
    while error is not None:
        assert "s3cr" not in str(error)
        error = error.__cause__ or error.__context__


def test_a_semaphore_of_any_size(own: Own, name: str) -> None:
    """Also one beyond what Lua prints in full."""
    backend = registry.entry(USING).backend
    with own.held(name):
        threading.Timer(0.2, own.let_go).start()
        began = time.monotonic()
        grant = backend.try_acquire(claim_of(name, 2.0, limit=10**16), 5)
        assert time.monotonic() - began < 2
    assert grant is not None
    assert backend.release(grant)


def test_connections_of_a_process_that_only_lists_are_closed(own: Own, monkeypatch: Any) -> None:
    """An admin process lists locks and never takes one."""
    monkeypatch.setattr(connection, "IDLE", 0.2)
    backend = registry.entry(USING).backend
    assert list(backend.inspect()) == []
    eventually(lambda: not backend.pool.is_open, "the connection stays open")  # type: ignore[attr-defined]


def test_many_held_locks_are_listed(own: Own) -> None:
    with own.client.pipeline(transaction=False) as pipe:
        for number in range(15_000):
            pipe.hset(f"distlock:{{n{number}}}:held", "xsomebody", '9999999999999 {"fence":1}')
        pipe.execute()
    assert len(list(registry.entry(USING).backend.inspect())) == 15_000


def test_a_system_without_tcp_keepidle(own: Own) -> None:
    """macOS calls it TCP_KEEPALIVE."""
    code = (
        "import socket; del socket.TCP_KEEPIDLE\n"
        "from django_distlock.backends.redis.connection import Connection\n"
        "from django_distlock.backends.redis.target import Target\n"
        f"Connection(Target(url={own.url!r}).connect(5)).close()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)
