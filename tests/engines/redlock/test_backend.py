"""RedlockBackend: options, checks, requests, and what an operator sees."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_distlock import LockLost, UnsupportedOperation, held_locks
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.manager.registry import registry
from tests.conftest import eventually
from tests.engines.redlock.nodes import Nodes, five_nodes
from tests.support.timing import within

if TYPE_CHECKING:
    from collections.abc import Iterator

A, B, C, D = (f"redis://127.0.0.1:{port}/0" for port in range(1, 5))


@pytest.fixture
def nodes(settings: Any, nothing_left: None) -> Iterator[Nodes]:
    """With time to answer: who is late is asked again, or not counted."""
    with five_nodes(settings, node_timeout=2) as nodes:
        yield nodes
        registry.close()


@pytest.fixture
def hasty_nodes(settings: Any, nothing_left: None) -> Iterator[Nodes]:
    with five_nodes(settings) as nodes:
        yield nodes
        registry.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"nodes": A}, {"nodes": []}, {"nodes": [A, 1]}]
    + [{"nodes": [A, B, C], "node_timeout": value} for value in (0, -1, True, "1", float("inf"))],
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ImproperlyConfigured, match="DISTLOCK\\['five'\\]"):
        RedlockBackend("five", options)


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ([A, B, C], []),
        ([A, B], ["distlock.E022"]),
        ([A, B, C, D], ["distlock.W021"]),
        ([A, B, B], ["distlock.E021"]),
        ([A, B, "nocache"], ["distlock.E023"]),
        ([A, B, "http://x"], ["distlock.E023"]),
    ],
)
def test_checks(settings: Any, given: list[str], ids: list[str]) -> None:
    backend = "django_distlock.backends.redlock.RedlockBackend"
    settings.DISTLOCK = {"default": {"BACKEND": backend, "OPTIONS": {"nodes": given}}}
    assert [message.id for message in run_checks(tags=["distlock"])] == ids


def test_one_request_to_each_node_to_take_it_and_one_to_give_it_back(nodes: Nodes, name: str) -> None:
    """SET, and one script; at the node that keeps the line two scripts, of which the first does SET."""
    lock = nodes.lock(name)
    nodes.connect(name)
    lead = registry.entry("five").key(name).digest[0] % 5
    eventually(lambda: nodes.keys() == [0] * 5, "keys are left")
    before = nodes.calls("evalsha"), nodes.calls("set")
    for _ in range(10):
        lock.acquire().release()
        nodes.quiet()  # a node that is behind is passed over
    assert nodes.calls("evalsha") == [was + (20 if node == lead else 10) for node, was in enumerate(before[0])]
    assert nodes.calls("set") == [was + 10 for was in before[1]]


def test_no_fence(nodes: Nodes, name: str) -> None:
    with nodes.lock(name) as lease, pytest.raises(UnsupportedOperation):
        _ = lease.fence


def test_a_passed_ttl_leaves_no_key(nodes: Nodes, name: str) -> None:
    """Nor a queue: whoever waited is gone as well."""
    lease = nodes.lock(name, ttl=0.3, max_hold=0.3).acquire()
    eventually(lambda: nodes.keys() == [0] * 5, "the TTL did not end it")
    with pytest.raises(LockLost):
        lease.release()


def test_the_list_is_of_all_nodes_and_what_cannot_be_read_is_held_by_somebody(nodes: Nodes, name: str) -> None:
    lock = nodes.lock(name)
    nodes.connect(name)
    with lock:
        eventually(lambda: sum(nodes.keys()) == 5, "somebody has not granted it")
        nodes.clients[0].flushall()
        nodes.clients[1].set("redlock:{garbage}", b"\xff{", px=5000)
        nodes.clients[2].rpush("redlock:{garbage}", "x")
        nodes.clients[2].pexpire("redlock:{garbage}", 5000)
        (report,) = held_locks("five")
        (ours,) = [info for info in report.locks if info.name == name]
        assert ours.details["nodes"] == "4 of 5"
        assert ours.holder is not None
        assert f":{os.getpid()}:" in ours.holder
        garbage = [info for info in report.locks if info.key == "garbage"]
        assert {info.holder for info in garbage} == {"unknown"}
    for client in nodes.clients[1:3]:
        client.delete("redlock:{garbage}")


def test_broken_on_all_nodes(nodes: Nodes, name: str) -> None:
    lease = nodes.lock(name).acquire()
    backend = registry.entry("five").backend
    (info,) = [info for info in backend.inspect() if info.name == name]
    assert backend.break_lock(info)
    assert nodes.keys() == [0] * 5
    assert not backend.break_lock(info)
    with pytest.raises(LockLost):
        lease.release()


def test_no_password_in_what_is_said(hasty_nodes: Nodes, name: str) -> None:
    nodes = hasty_nodes
    password = nodes.servers[0]["password"]
    backend = registry.entry("five").backend
    nodes.lock(name).acquire().release()
    for proxy in nodes.proxies:
        proxy.blackhole()
    began = time.monotonic()
    with pytest.raises(Exception, match="5 of 5 Redis nodes did not answer in time: 1, 2, 3, 4, 5") as failed:
        nodes.lock(name).acquire(timeout=0)
    within(time.monotonic() - began, 0.55)
    for proxy in nodes.proxies:
        proxy.heal()
    said = f"{failed.value!r} {failed.value.__cause__!r} {backend!r} {backend._targets!r}"
    assert password not in said
