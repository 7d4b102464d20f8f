"""RedlockBackend: options, requests, and what an operator sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_distlock import held_locks
from django_distlock.backends.redlock.backend import RedlockBackend
from django_distlock.backends.redlock.rounds import NodeAnswer, unavailable

if TYPE_CHECKING:
    from tests.engines.redlock.nodes import Nodes

A, B, C, D = (f"redis://127.0.0.1:{port}/0" for port in range(1, 5))
BACKEND = "django_distlock.backends.redlock.RedlockBackend"


def test_bad_options() -> None:
    nodes: list[dict[str, Any]] = [{}, {"nodes": A}, {"nodes": []}, {"nodes": [A, 1]}]
    times = [{"nodes": [A, B, C], "node_timeout": value} for value in (0, -1, True, "1", float("inf"))]
    for options in nodes + times:
        with pytest.raises(ImproperlyConfigured, match="DISTLOCK\\['five'\\]"):
            RedlockBackend("five", options)


def test_checks(settings: Any) -> None:
    for given, ids in (
        ([A, B, C], []),
        ([A, B], ["distlock.E022"]),
        ([A, B, C, D], ["distlock.W021"]),
        ([A, B, B], ["distlock.E021"]),
        ([A, B, "nocache"], ["distlock.E023"]),
        ([A, B, "http://x"], ["distlock.E023"]),
    ):
        settings.DISTLOCK = {"default": {"BACKEND": BACKEND, "OPTIONS": {"nodes": given}}}
        assert [message.id for message in run_checks(tags=["distlock"])] == ids


def test_one_request_to_each_node_to_take_it_and_one_to_give_it_back(nodes: Nodes, name: str, lead: int) -> None:
    """SET, and one script; at the node that keeps the line two scripts, of which the first does SET."""
    lock = nodes.lock(name)
    nodes.connect(name)
    nodes.gone()
    before = nodes.calls("evalsha"), nodes.calls("set")
    for _ in range(10):
        lock.acquire().release()
        nodes.quiet()  # a node that is behind is passed over
    assert nodes.calls("evalsha") == [was + (20 if node == lead else 10) for node, was in enumerate(before[0])]
    assert nodes.calls("set") == [was + 10 for was in before[1]]


def test_the_list_is_of_all_nodes_and_what_cannot_be_read_is_held_by_somebody(nodes: Nodes, name: str) -> None:
    nodes.connect(name)
    with nodes.held(name):
        nodes.clients[0].flushall()
        nodes.clients[1].set("redlock:{garbage}", b"\xff{", px=5000)
        nodes.clients[2].rpush("redlock:{garbage}", "x")
        (report,) = held_locks("five")
        (ours,) = [info for info in report.locks if info.name == name]
        assert ours.details["nodes"] == "4 of 5"
        assert f":{os.getpid()}:" in str(ours.holder)
        assert {info.holder for info in report.locks if info.key == "garbage"} == {"unknown"}
    for client in nodes.clients[1:3]:
        client.delete("redlock:{garbage}")


LATE, REFUSED = TimeoutError(), ConnectionRefusedError()
ERRORS: list[tuple[str, dict[int, Exception], bool, str, type]] = [
    ("PPPPG", {}, True, "4 of 5 Redis nodes did not answer in time: 1, 2, 3, 4.", TimeoutError),
    (
        "FFPPG",
        {0: REFUSED, 1: OSError()},
        True,
        "2 of 5 Redis nodes did not answer in time: 3, 4; 2 failed: 1, 2 (ConnectionRefusedError, OSError).",
        TimeoutError,
    ),
    # these alone are too many, however the machine was disturbed
    (
        "FFFPG",
        {0: REFUSED, 1: REFUSED, 2: REFUSED, 3: LATE},
        True,
        "3 of 5 Redis nodes failed: 1, 2, 3 (ConnectionRefusedError); no answer yet: 4.",
        ConnectionRefusedError,
    ),
    ("RRGGG", {}, True, "No majority of the 5 Redis nodes confirms it.", type(None)),
]


def test_the_error_says_who_failed_and_who_took_too_long() -> None:
    """Who is called at night wants to know."""
    of_letter = {answer.name[0]: answer for answer in NodeAnswer}
    for answers, errors, over, said, cause in ERRORS:
        all_of = [errors.get(number) for number in range(5)]
        error = unavailable([of_letter[letter] for letter in answers], [True] * 5, all_of, over=over)
        assert str(error) == said
        assert type(error.__cause__) is cause
