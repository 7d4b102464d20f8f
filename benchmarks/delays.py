"""Proxies that hold up what passes, in a process of their own so that they do not share the client's interpreter."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
from typing import TYPE_CHECKING

from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

PATIENCE = 30.0
OPEN: list[Connection] = []  # the ends that keep the proxies going


def serve(pipe: Connection, targets: tuple[tuple[str, int], ...], seconds: float) -> None:
    """Run one proxy per target until the other end of the pipe is closed."""
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(*target)) for target in targets]
        for proxy in proxies:
            proxy.delay(seconds)
        pipe.send([("127.0.0.1", proxy.port) for proxy in proxies])
        with contextlib.suppress(EOFError):
            pipe.recv()


@functools.cache
def delayed(targets: tuple[tuple[str, int], ...], seconds: float) -> list[tuple[str, int]]:
    """Return an address for each target behind which every request and every reply takes that much longer.

    The process lives as long as this one.
    """
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    context.Process(target=serve, args=(theirs, targets, seconds), daemon=True).start()
    theirs.close()
    if not pipe.poll(PATIENCE):
        raise TimeoutError(f"the proxies did not start within {PATIENCE:g} s")
    addresses: list[tuple[str, int]] = pipe.recv()
    OPEN.append(pipe)
    return addresses
