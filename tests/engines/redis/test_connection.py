"""A connection over redis-py's: what it reads, whichever parser reads it, and that reading never waits."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import sys
import termios
import threading
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from redis._parsers import _RESP3Parser
from redis.connection import DefaultParser
from redis.exceptions import ResponseError

from django_distlock.backends.redis import target as target_module
from django_distlock.backends.redis.connection import (
    PENDING,
    Connection,
    ConnectionFailed,
    Push,
    pack,
    reply_code,
)
from django_distlock.backends.redis.target import Target
from django_distlock.concurrency.clock import monotonic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.engines.redis.server import Own

REDIS_PY = int(version("redis").partition(".")[0])
HELLO = b"%1\r\n$5\r\nproto\r\n:3\r\n"


@pytest.fixture(params=["python", "installed"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(target_module, "_parser", lambda: _RESP3Parser)


class Peer:
    """The far end of ``connection``: it says what the test wants."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            greeter = threading.Thread(target=self._greet, args=(listener,))
            greeter.start()
            url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
            self.connection = Connection(Target(url=url).connect(5))
            greeter.join(5)

    def _greet(self, listener: socket.socket) -> None:
        self._sock, _ = listener.accept()
        while b"HELLO" not in self._sock.recv(999):
            pass
        self._sock.sendall(HELLO)
        answered = 0  # redis-py sends its name and its version
        while answered < 2:
            commands = self._sock.recv(999).count(b"SETINFO")
            self._sock.sendall(b"+OK\r\n" * commands)
            answered += commands

    def say(self, data: bytes) -> None:
        self._sock.sendall(data)

    def heard(self) -> bytes:
        """All that it can still read."""
        heard = b""
        with contextlib.suppress(ConnectionResetError):
            while data := self._sock.recv(1_000_000):
                heard += data
        return heard

    def close(self) -> None:
        self._sock.close()
        self.connection.close()


@pytest.fixture
def peer(parser: None) -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


def until() -> float:
    return monotonic() + 5


VALUES = [
    (b"+OK\r\n", b"OK"),
    (b":-3\r\n", -3),
    (b"$3\r\na\r\n\r\n", b"a\r\n"),
    (b"_\r\n", None),
    (b"*2\r\n:1\r\n*1\r\n$1\r\n\xff\r\n", [1, [b"\xff"]]),
]


@pytest.mark.parametrize(("raw", "value"), VALUES)
def test_a_reply_that_comes_in_pieces_is_never_waited_for(peer: Peer, raw: bytes, value: Any) -> None:
    """On an event loop reading must not wait for the rest."""
    connection = peer.connection
    connection.send(pack("GET", "a"))
    for cut in range(len(raw) - 1):
        peer.say(raw[cut : cut + 1])
        while not connection._poll.poll(5000):
            pass
        assert connection.take() is PENDING
    peer.say(raw[-1:] + b">2\r\n+a\r\n:1\r\n")
    assert connection.receive(until()) == value
    assert connection.clean
    assert connection.listen(until()) == [b"a", 1]


def test_a_push_ahead_of_a_reply_that_is_broken_off_is_heard_once(peer: Peer) -> None:
    connection = peer.connection
    connection.send(pack("GET", "a"))
    peer.say(b">1\r\n+heard\r\n$5\r\nhe")

    async def read() -> Any:
        reply = asyncio.create_task(connection.areceive(until()))
        while not connection.pushes:  # noqa: ASYNC110 - the event loop hears it
            await asyncio.sleep(0)
        assert not reply.done()
        peer.say(b"llo\r\n")
        return await reply

    assert asyncio.run(read()) == b"hello"
    assert list(connection.pushes) == [Push([b"heard"])]


def test_replies_that_come_together_are_each_received(peer: Peer) -> None:
    peer.connection.send(pack("GET", "a"), pack("GET", "b"), pack("GET", "c"))
    peer.say(b":1\r\n:2\r\n:3\r\n")
    assert [peer.connection.receive(until()) for _ in range(3)] == [1, 2, 3]
    assert peer.connection.clean


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"-NOSCRIPT No matching script.\r\n", "NOSCRIPT"),
        (b"-READONLY You can't write against a read only replica.\r\n", "READONLY"),
        (b"-MOVED 3999 127.0.0.1:6381\r\n", "MOVED"),
        (b"-ASK 3999 127.0.0.1:6381\r\n", "ASK"),
        (b"-CLUSTERDOWN The cluster is down\r\n", "CLUSTERDOWN"),
        (b"-CROSSSLOT Keys in request don't hash to the same slot\r\n", "CROSSSLOT"),
        (b"-WRONGTYPE Operation against a key\r\n", "WRONGTYPE"),
        (b":1\r\n", ""),
    ],
)
def test_the_code_of_an_error_reply(peer: Peer, raw: bytes, code: str) -> None:
    peer.connection.send(pack("GET", "a"))
    peer.say(raw)
    reply = peer.connection.receive(until())
    assert reply_code(reply) == code
    assert isinstance(reply, ResponseError) is bool(code)
    assert peer.connection.clean


@pytest.mark.parametrize("garbage", [b"HTTP/1.1 400\r\n", b":x\r\n", b"$x\r\n", b"*x\r\n"])
def test_what_is_not_resp_ends_the_connection(peer: Peer, garbage: bytes) -> None:
    peer.connection.send(pack("GET", "a"))
    peer.say(garbage)
    with pytest.raises(ConnectionFailed) as caught:
        peer.connection.receive(until())
    assert caught.value.uncertain


def test_a_server_that_reads_nothing_does_not_hold_its_caller_up(peer: Peer) -> None:
    """A socket takes some megabytes; what it does not take at once is an error."""
    with pytest.raises(ConnectionFailed):
        peer.connection.send(*[pack("SET", "a", b"x" * 1_000_000)] * 100)


def test_r7_what_the_network_has_not_delivered_is_dropped_with_the_connection(peer: Peer) -> None:
    """Naive code closes the socket, and TCP delivers the request once the network is whole again, minutes later."""
    undelivered = bytearray(4)
    while not int.from_bytes(undelivered, sys.byteorder):  # the network takes nothing more
        peer.connection.send(pack("SET", "a", b"x" * 100_000))
        time.sleep(0.01)
        fcntl.ioctl(peer.connection.fd, termios.TIOCOUTQ, undelivered)
    peer.connection.send(pack("SET", "too late", "a"))
    peer.connection.close()
    assert b"too late" not in peer.heard()


def test_silence_ends_at_the_deadline(peer: Peer) -> None:
    peer.connection.send(pack("GET", "a"))
    for receive in (peer.connection.receive, lambda until: asyncio.run(peer.connection.areceive(until))):
        with pytest.raises(ConnectionFailed) as caught:
            receive(monotonic() + 0.01)
        assert caught.value.timed_out


def test_a_connection_that_the_server_has_closed_is_stale(peer: Peer) -> None:
    assert not peer.connection.stale()
    peer._sock.close()
    assert peer.connection._poll.poll(5000)
    assert peer.connection.stale()


def test_hiredis_is_used_where_it_knows_pushes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert target_module._parser() is (DefaultParser if REDIS_PY >= 6 else _RESP3Parser)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    assert target_module._parser() is _RESP3Parser


def test_pack() -> None:
    assert pack("GET", b"\xff", 1) == b"*3\r\n$3\r\nGET\r\n$1\r\n\xff\r\n$1\r\n1\r\n"


@pytest.mark.usefixtures("parser")
def test_options_that_would_retry_or_decode_change_nothing(own: Own) -> None:
    """Those of a cache or URL are meant for redis-py's own client."""
    options = "retry_on_timeout=1&health_check_interval=1&decode_responses=1&socket_timeout=0.001&protocol=2"
    connection = Connection(Target(url=f"{own.url}?{options}").connect(5))
    connection.send(pack("SET", "a", b"\xff"), pack("GET", "a"))
    assert [connection.receive(until()) for _ in range(2)] == [b"OK", b"\xff"]
    connection.close()


def test_a_push_is_returned_without_a_further_read(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be the lock, for which others wait. A read in vain costs two exceptions."""
    read, reads = peer.connection._read, []
    monkeypatch.setattr(peer.connection, "_read", lambda *args: reads.append(args) or read(*args))
    peer.say(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\nlock\r\n")
    assert peer.connection._wait(monotonic() + 5)
    assert peer.connection.listen(monotonic() + 5) == [b"message", b"c", b"lock"]
    assert len(reads) == 1
