"""What Redlock says when too few nodes answer."""

from __future__ import annotations

import socket

import pytest

from django_distlock.backends.redis.target import Target
from django_distlock.backends.redlock.rounds import NodeAnswer, unavailable

LATE, REFUSED = TimeoutError(), ConnectionRefusedError()


@pytest.mark.parametrize(
    ("answers", "errors", "over", "said", "cause"),
    [
        ("PPPPG", {}, True, "4 of 5 Redis nodes did not answer in time: 1, 2, 3, 4.", TimeoutError),
        (
            "FFFPG",
            dict.fromkeys((0, 1, 2), LATE),
            False,
            "3 of 5 Redis nodes did not answer in time: 1, 2, 3.",
            TimeoutError,
        ),
        (
            "FFFPP",
            dict.fromkeys((0, 1, 2), REFUSED),
            False,
            "3 of 5 Redis nodes failed: 1, 2, 3 (ConnectionRefusedError).",
            ConnectionRefusedError,
        ),
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
        ("FFFFF", {}, False, "5 of 5 Redis nodes failed: 1, 2, 3, 4, 5.", type(None)),
        ("RRGGG", {}, True, "No majority of the 5 Redis nodes confirms it.", type(None)),
    ],
)
def test_the_error_says_who_failed_and_who_took_too_long(
    answers: str, errors: dict[int, Exception], over: bool, said: str, cause: type
) -> None:
    """Who is called at night wants to know; and a test may be run again for the one and not for the other."""
    known = {
        "P": NodeAnswer.PENDING,
        "F": NodeAnswer.FAILED,
        "R": NodeAnswer.REFUSED,
        "G": NodeAnswer.GRANTED,
    }
    all_of = [errors.get(number) for number in range(5)]
    error = unavailable([known[answer] for answer in answers], [True] * 5, all_of, over=over)
    assert str(error) == said
    assert type(error.__cause__) is cause


def test_who_was_not_asked_has_not_failed() -> None:
    """The node that keeps the line is asked first, alone."""
    asked = [False, True, False]
    error = unavailable([NodeAnswer.FAILED, NodeAnswer.PENDING, NodeAnswer.FAILED], asked, [None] * 3, over=True)
    assert str(error) == "1 of 3 Redis nodes did not answer in time: 2."


@pytest.mark.parametrize(("late", "said"), [(True, "did not answer in time: 1"), (False, "failed: 1")])
def test_redis_py_says_it_in_its_own_words(late: bool, said: str) -> None:
    """One that accepts and says nothing, and one that is not there."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not late:
            server.close()
        target = Target(url=f"redis://:password@127.0.0.1:{port}")
        with pytest.raises(Exception, match=r"Timeout|refused") as raised:
            target.connect(0.05)
        error = unavailable([NodeAnswer.FAILED], [True], [raised.value], over=False)
    assert f"1 of 1 Redis nodes {said}" in str(error)
    assert type(raised.value).__module__ == "redis.exceptions"
