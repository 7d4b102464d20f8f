"""A process that may start no more threads."""

from __future__ import annotations

import threading

import pytest

from django_distlock import BackendUnavailable, advisory_lock, held_locks
from django_distlock.manager.registry import registry
from tests.conftest import connect


@pytest.mark.parametrize("cold", [False, True], ids=["connected", "cold"])
def test_r6_without_threads_locks_are_given_or_the_error_says_so(
    using: str, name: str, cold: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing hangs, nothing stays held, and all is well when there are threads again."""
    connect(using)
    if cold:
        registry.close()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        refused = None
        try:
            advisory_lock(name, using=using, timeout=5).acquire().release()
        except BackendUnavailable as error:
            refused = f"{error} {error.__cause__}"
        assert refused is None or (cold and "thread" in refused)
        [without] = held_locks(using=using)
        assert not without.locks
    with advisory_lock(name, using=using, timeout=25):
        [report] = held_locks(using=using)
        assert report.error is None
        assert report.locks
