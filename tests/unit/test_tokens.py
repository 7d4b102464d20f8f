"""Owner tokens: no two are the same, in threads and after a fork (R22)."""

from __future__ import annotations

import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

from django_distlock.concurrency import tokens
from django_distlock.concurrency.tokens import BATCH, new_token


def test_a_token_is_128_bits_in_hexadecimal_and_no_two_threads_draw_the_same() -> None:
    with ThreadPoolExecutor(8) as pool:
        drawn = [token for many in pool.map(lambda _: [new_token() for _ in range(1000)], range(16)) for token in many]
    assert len(drawn) == len(set(drawn)) == 16000
    assert all(re.fullmatch("[0-9a-f]{32}", token) for token in drawn)


def drawn_by_a_child() -> list[str]:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that other threads may run
        pid = os.fork()
    if pid == 0:
        os.write(writer, " ".join(new_token() for _ in range(10)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        drawn = pipe.read().split()
    os.waitpid(pid, 0)
    return drawn


def test_r22_a_child_does_not_draw_from_the_stock_of_its_parent() -> None:
    """Nor wait for a thread that drew in the moment of the fork."""
    new_token()  # they are drawn many at a time
    children = drawn_by_a_child()
    with tokens._guard:
        children += drawn_by_a_child()
    assert len({*children, *(new_token() for _ in range(2 * BATCH))}) == 20 + 2 * BATCH
