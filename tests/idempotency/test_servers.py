"""Real servers: 50 identical requests at one barrier over four processes, and workers that are killed."""

from __future__ import annotations

import http.client
import json
import time
import uuid
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from testproject.replay.server import Server
from tests.idempotency.served import LEASE, POINTS
from tests.idempotency.world import at_once, forget_everything
from tests.transactions import rows

if TYPE_CHECKING:
    from collections.abc import Iterator


CROWD, PROCESSES = 50, 4
ENGINES = {"default": "sqlite", "postgres": "postgres", "mariadb": "mariadb"}
UNKNOWN = ("after the claim", "in the view", "after commit")
pytestmark = [pytest.mark.usefixtures("databases", "tables"), pytest.mark.tier2]


@pytest.fixture(scope="module", params=ENGINES)
def alias(request: pytest.FixtureRequest, tables: None, django_db_blocker: Any) -> Iterator[str]:
    yield request.param
    with django_db_blocker.unblock():
        forget_everything(request.param)
        connections.close_all()


@pytest.fixture(scope="module")
def wsgi(alias: str, django_db_blocker: Any) -> Iterator[int]:
    """The port of gunicorn with four processes, under ATOMIC_REQUESTS; some views are taken out of it."""
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("DB", ENGINES[alias])
        patch.setenv("DISTLOCK_DEMO_DB", str(connections[alias].settings_dict["NAME"]))
        patch.setenv("DISTLOCK_ATOMIC_REQUESTS", "1")
        patch.setenv("DJANGO_SETTINGS_MODULE", "tests.idempotency.served_settings")
        started = Server(workers=PROCESSES, threads=16)
        server = started.__enter__()
    try:  # what starts from now on has the environment of the tests again
        yield server.port
    finally:
        started.__exit__()


class Reply:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.replayed = response.getheader("Idempotency-Replayed") == "true"
        self.body = json.loads(response.read() or b"null") if response.status < 500 else None


def post(port: int, shape: str, name: str, **headers: str) -> Any:
    """The answer, or None if the worker died."""
    server = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    given = {"Content-Type": "application/json", "Authorization": "Bearer a", "Idempotency-Key": name}
    with suppress(http.client.HTTPException, ConnectionError), closing(server) as connection:
        connection.request("POST", f"/{shape}/", json.dumps({"name": name}), given | headers)
        return Reply(connection.getresponse())
    return None


def until_answered(port: int, shape: str, name: str) -> Any:
    """As a client does: again, as long as it is in flight; not for longer than the lease."""
    deadline = time.monotonic() + LEASE + 5
    while True:
        reply = post(port, shape, name)
        if reply is not None and not (reply.status == 409 and reply.body["code"] == "in_flight"):
            return reply
        assert time.monotonic() < deadline, "the key is not usable again"
        time.sleep(0.02)


def race(port: int, alias: str, shape: str) -> None:
    name = uuid.uuid4().hex
    replies = at_once(lambda: post(port, shape, name), CROWD)
    assert all(reply is not None for reply in replies)
    assert {reply.status for reply in replies} <= {201, 409}
    made = [reply for reply in replies if reply.status == 201]
    assert len({json.dumps(reply.body) for reply in made}) == 1
    assert [reply.replayed for reply in made].count(False) == 1
    assert rows.count(alias, name) == 1


RACES = [("default", "atomic-in"), ("postgres", "plain-out"), ("postgres", "async"), ("mariadb", "atomic-in")]


@pytest.mark.parametrize(("alias", "shape"), RACES, indirect=["alias"], scope="module")
def test_fifty_at_one_barrier_act_once(wsgi: int, alias: str, shape: str) -> None:
    race(wsgi, alias, shape)


@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_exactly_once(wsgi: int, alias: str, point: str) -> None:
    """At every point of the kill the retry gets the right answer, and the effect is there once."""
    name = uuid.uuid4().hex
    assert post(wsgi, "atomic-in", name, **{"X-Die": point}) is None
    reply = until_answered(wsgi, "atomic-in", name)
    assert (reply.status, reply.body["name"]) == (201, name)
    assert reply.replayed == (point in ("after commit", "before the answer"))
    assert rows.count(alias, name) == 1


# A claim is one row by the same code on each database.
@pytest.mark.parametrize("alias", ["default"], indirect=True, scope="module")
@pytest.mark.parametrize("shape", ["hold", "retry"])
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_otherwise(wsgi: int, alias: str, shape: str, point: str) -> None:
    """ "hold": at most one effect, and a person has to look. "retry": at least one, and the client has its answer."""
    name = uuid.uuid4().hex
    assert post(wsgi, shape, name, **{"X-Die": point}) is None
    reply = until_answered(wsgi, shape, name)
    effects = rows.count(alias, name)
    if shape == "hold" and point in UNKNOWN:
        assert (reply.status, reply.body["code"]) == (409, "outcome_unknown")
        assert effects <= 1
    else:
        assert reply.status == 201
        assert effects == (2 if shape == "retry" and point == "after commit" else 1)
