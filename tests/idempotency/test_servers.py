"""Real servers: 50 identical requests at one barrier over four processes, workers that are killed, clients that go."""

from __future__ import annotations

import http.client
import json
import os
import socket
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from testproject.replay.server import Server
from tests.idempotency.conftest import LOCKS, forget_everything
from tests.idempotency.served import LEASE, MIDDLEWARE, POINTS
from tests.support.processes import Child
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.child import Link

CROWD, PROCESSES = 50, 4
ENGINES = {"default": "sqlite", "postgres": "postgres", "mariadb": "mariadb"}
pytestmark = [pytest.mark.usefixtures("databases", "tables"), pytest.mark.tier2]


@pytest.fixture(scope="module", params=ENGINES)
def alias(request: pytest.FixtureRequest) -> str:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def server(alias: str, tables: None, django_db_setup: None, django_db_blocker: Any) -> Iterator[Server]:
    """gunicorn with four processes, under ATOMIC_REQUESTS; some views are taken out of it."""
    environment = {
        "DB": ENGINES[alias],
        "DISTLOCK_DEMO_DB": str(connections[alias].settings_dict["NAME"]),
        "DISTLOCK_ATOMIC_REQUESTS": "1",
        "DJANGO_SETTINGS_MODULE": "tests.idempotency.served_settings",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        started = Server(workers=PROCESSES, threads=16)
        server = started.__enter__()
    try:  # what starts from now on has the environment of the tests again
        yield server
    finally:
        started.__exit__()
    with django_db_blocker.unblock():
        forget_everything(alias)
        connections.close_all()


class Reply:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.replayed = response.getheader("Idempotency-Replayed") == "true"
        self.body = json.loads(response.read() or b"null") if response.status < 500 else None


def post(port: int, shape: str, name: str, **headers: str) -> Reply | None:
    """The answer, or None if the worker died."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    given = {"Content-Type": "application/json", "Authorization": "Bearer a", "Idempotency-Key": name}
    try:
        connection.request("POST", f"/{shape}/", json.dumps({"name": name}), given | headers)
        return Reply(connection.getresponse())
    except (http.client.HTTPException, ConnectionError):
        return None
    finally:
        connection.close()


def race(port: int, alias: str, shape: str) -> None:
    name = uuid.uuid4().hex
    barrier = threading.Barrier(CROWD)

    def one() -> Reply | None:
        barrier.wait(30)
        return post(port, shape, name)

    with ThreadPoolExecutor(CROWD) as pool:
        replies = [future.result(60) for future in [pool.submit(one) for _ in range(CROWD)]]
    assert all(reply is not None for reply in replies)
    found = [reply for reply in replies if reply is not None]
    assert {reply.status for reply in found} <= {201, 409}, [reply.status for reply in found]
    made = [reply for reply in found if reply.status == 201]
    assert len({json.dumps(reply.body) for reply in made}) == 1
    assert [reply.replayed for reply in made].count(False) == 1
    assert rows.count(alias, name) == 1


@pytest.mark.parametrize(
    ("alias", "shape"),
    [("default", "atomic-in"), ("postgres", "plain-out"), ("postgres", "async"), ("mariadb", "atomic-in")],
    indirect=["alias"],
    scope="module",
)
def test_fifty_at_one_barrier_act_once(server: Server, alias: str, shape: str) -> None:
    race(server.port, alias, shape)


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_exactly_once(server: Server, alias: str, point: str) -> None:
    """At every point of the kill the retry gets the right answer, and the effect is there once."""
    name = uuid.uuid4().hex
    assert post(server.port, "atomic-in", name, **{"X-Die": point}) is None
    reply = until_answered(server.port, "atomic-in", name)
    assert (reply.status, reply.body["name"]) == (201, name)
    assert reply.replayed == (point in ("after commit", "before the answer"))
    assert rows.count(alias, name) == 1


def until_answered(port: int, shape: str, name: str) -> Reply:
    """As a client does: again, as long as it is in flight; not for longer than the lease."""
    deadline = time.monotonic() + LEASE + 5
    while True:
        reply = post(port, shape, name)
        if reply is not None and not (reply.status == 409 and reply.body["code"] == "in_flight"):
            return reply
        assert time.monotonic() < deadline, "the key is not usable again"
        time.sleep(0.02)


UNKNOWN = ("after the claim", "in the view", "after commit")


# A claim is one row by the same code on each database.
@pytest.mark.parametrize("alias", ["default"], indirect=True, scope="module")
@pytest.mark.parametrize("shape", ["hold", "retry"])
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_otherwise(server: Server, alias: str, shape: str, point: str) -> None:
    """ "hold": at most one effect, and a person has to look. "retry": at least one, and the client has its answer."""
    name = uuid.uuid4().hex
    assert post(server.port, shape, name, **{"X-Die": point}) is None
    reply = until_answered(server.port, shape, name)
    effects = rows.count(alias, name)
    if shape == "hold" and point in UNKNOWN:
        assert (reply.status, reply.body["code"]) == (409, "outcome_unknown")
        assert effects <= 1
    else:
        assert reply.status == 201
        assert effects == (2 if shape == "retry" and point == "after commit" else 1)


def serve_asgi(link: Link, alias: str, processes: int) -> None:
    """uvicorn in as many processes on one socket, until told to end."""
    import uvicorn
    from django.core.asgi import get_asgi_application
    from django.test import override_settings

    listener = socket.create_server(("127.0.0.1", 0), backlog=256)
    site = {"DATABASE": alias, "LOCK": LOCKS[alias], "REPLAY_TO_CREDENTIALS": True}
    with override_settings(
        MIDDLEWARE=MIDDLEWARE, ROOT_URLCONF="tests.idempotency.served", DISTLOCK_IDEMPOTENCY=site, ALLOWED_HOSTS=["*"]
    ):
        application = get_asgi_application()
        for _ in range(processes - 1):
            if os.fork() == 0:
                _end_with_parent()
                break
        else:
            link.say(listener.getsockname()[1])
            threading.Thread(target=lambda: link.hear() or os._exit(0), daemon=True).start()
        uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off")).run(sockets=[listener])


def _end_with_parent() -> None:
    """A worker whose parent is gone ends too."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


@pytest.fixture(scope="module")
def asgi(alias: str, tables: None, django_db_setup: None, django_db_blocker: Any) -> Iterator[int]:
    with django_db_blocker.unblock():
        child = Child(serve_asgi, alias, PROCESSES)
    with child:
        yield child.hear()
        child.kill()
    with django_db_blocker.unblock():
        forget_everything(alias)
        connections.close_all()


# The databases differ below the middleware, the two servers above it: one database shows what is of the server.
under_uvicorn = pytest.mark.parametrize("alias", ["postgres"], indirect=True, scope="module")


@under_uvicorn
def test_fifty_at_one_barrier_under_uvicorn(asgi: int, alias: str) -> None:
    race(asgi, alias, "async")
