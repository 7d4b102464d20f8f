"""R7: the exception of a signal at any moment of a call in another thread leaves nothing locked."""

from __future__ import annotations

import threading
from contextlib import suppress

from django_distlock.concurrency import background, clock, outcome
from django_distlock.concurrency.background import NotStarted, SharedCall
from django_distlock.concurrency.flow import run
from django_distlock.concurrency.outcome import Outcome
from tests.conftest import PATIENCE
from tests.support.interrupts import interrupted_everywhere


def test_r7_a_call_interrupted_anywhere_hangs_no_other_caller() -> None:
    """Of a session that is being opened, for example, for which all wait."""
    shared = SharedCall("test", lambda: "opened")
    results: list[str] = []

    def ask() -> None:
        results.append(run(shared.result(clock.now() + PATIENCE)))

    def others_go_on() -> None:
        results.clear()
        other = threading.Thread(target=ask, daemon=True)
        other.start()
        other.join(PATIENCE)
        assert results == ["opened"]

    def ask_once() -> None:
        with suppress(NotStarted):  # Thread.start() may make another error of the exception
            ask()

    assert interrupted_everywhere(ask_once, others_go_on, background, outcome, threading) > 20


def test_r7_a_call_whose_end_is_interrupted_anywhere_has_ended() -> None:
    """Each callback is called once at most, and a second end changes nothing."""
    ended: list[Outcome[str]] = []
    calls = [Outcome[str]() for _ in range(100)]

    def end() -> None:
        calls[0].add_done_callback(ended.append)
        calls[0].set_result("first")

    def clean() -> None:
        call = calls.pop(0)
        call.set_exception(ValueError())
        other = threading.Thread(target=lambda: run(call.wait()), daemon=True)
        other.start()
        other.join(PATIENCE)
        assert not other.is_alive()
        assert len(ended) <= 1
        ended.clear()

    assert interrupted_everywhere(end, clean, outcome, threading) > 3
