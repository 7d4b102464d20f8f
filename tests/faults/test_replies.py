"""R7, R22c: the event loop itself waits for the reply to a task's statement. Others may read it for the task."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from django_distlock import LockLost, advisory_lock
from django_distlock.backends.sessions import reply
from django_distlock.backends.sessions.watched import SessionDead
from django_distlock.manager.registry import registry
from tests.conftest import connect, eventually
from tests.faults.server import SESSION_LOCKS, holders, session_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faults.conftest import Proxied
    from tests.faults.proxy import Held

pytestmark = [pytest.mark.usefixtures("databases"), pytest.mark.parametrize("using", SESSION_LOCKS)]


def shared_session(using: str) -> Any:
    """It holds a lock, and is ready for a task's statements."""
    connect(using)
    return registry.entry(using).backend.sessions.shared_session  # type: ignore[attr-defined]


def test_without_a_file_to_watch_a_thread_asks_for_a_task(
    using: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locks that the process holds go on."""
    session = shared_session(using)
    other = advisory_lock(name + "-other", using=using).acquire()

    def full(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> None:
        async with advisory_lock(name, using=using) as lease:
            assert session_of(lease) is session

    monkeypatch.setattr(reply.os, "dup", full)
    asyncio.run(main())
    monkeypatch.undo()
    other.release()


def test_a_session_that_ends_as_a_task_asks_leaves_no_file_open(
    using: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session is opened for it."""
    session = shared_session(using)
    made: list[int] = []
    closed: list[int] = []
    dup, close = os.dup, os.close

    def duplicated(descriptor: int) -> int:
        made.append(dup(descriptor))
        return made[-1]

    def closes(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    def dies(statement: object) -> None:
        session.kill("ended")
        raise SessionDead("ended")

    async def main() -> None:
        monkeypatch.setattr(reply.os, "dup", duplicated)
        monkeypatch.setattr(reply.os, "close", closes)
        monkeypatch.setattr(session, "_send", dies)
        lease = await advisory_lock(name, using=using).aacquire()
        monkeypatch.undo()
        assert session_of(lease) is not session
        await lease.arelease()

    asyncio.run(main())
    assert made[0] in closed


def acquired_while_blocked(using: str, name: str, held: Held, meanwhile: Callable[[], object]) -> Any:
    """The lease of a task. Its reply arrives while its event loop is blocked; ``meanwhile`` runs in another thread."""

    async def main() -> Any:
        task = asyncio.create_task(advisory_lock(name, using=using).aacquire())
        await asyncio.to_thread(held.wait)
        thread = threading.Thread(target=meanwhile)
        thread.start()
        thread.join()  # on the event loop
        return await task

    return asyncio.run(main())


@pytest.mark.parametrize("reader", ["caller", "watchdog"])
def test_a_reply_is_read_though_its_event_loop_is_blocked(using: str, reader: str, name: str, proxied: Proxied) -> None:
    """A view that computes for seconds costs the others neither their turn nor their locks."""
    proxy = proxied(using)
    session = shared_session(using)
    other = advisory_lock(name + "-other", using=using).acquire()
    held = proxy.hold("reply")

    def meanwhile() -> None:
        held.pass_on()
        if reader == "caller":
            advisory_lock(name + "-third", using=using).acquire().release()
        eventually(lambda: session.unread is None, "nobody reads the reply")

    lease = acquired_while_blocked(using, name, held, meanwhile)
    assert holders(using, name) == [session_of(lease).server_id] == [session.server_id]
    lease.release()
    other.release()


def test_r22_the_child_of_a_fork_watches_no_reply_of_its_parent(using: str, name: str, proxied: Proxied) -> None:
    """The parent's task gets its lock."""
    proxy = proxied(using)
    session = shared_session(using)
    held = proxy.hold("reply")
    statuses: list[int] = []

    def meanwhile() -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if session.unread._watched < 0 else 1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        held.pass_on()

    with acquired_while_blocked(using, name, held, meanwhile) as lease:
        assert statuses == [0]
        assert holders(using, name) == [session_of(lease).server_id] == [session.server_id]


def test_r17_a_connection_that_is_cut_before_the_reply(using: str, name: str, proxied: Proxied) -> None:
    """The other lock of the session is told as lost, and the task gets its lock on a new one."""
    proxy = proxied(using)
    session = shared_session(using)
    other = advisory_lock(name + "-other", using=using).acquire()
    with acquired_while_blocked(using, name, proxy.hold("reply"), proxy.cut) as lease:
        eventually(lambda: other.lost, "not told as lost")
        assert session_of(lease) is not session
    with pytest.raises(LockLost):
        other.release()
    assert not holders(using, name)


def test_r7_a_task_that_goes_before_the_reply_to_its_release_leaves_nothing(
    using: str, name: str, proxied: Proxied
) -> None:
    """Of an acquire: tests/contract/test_cancellation.py."""
    proxy = proxied(using)
    session = shared_session(using)
    other = advisory_lock(name + "-other", using=using).acquire()

    async def main() -> None:
        lease = await advisory_lock(name, using=using).aacquire()
        held = proxy.hold("reply")
        task = asyncio.ensure_future(lease.arelease())
        await asyncio.to_thread(held.wait)
        task.cancel()
        threading.Timer(0.0, held.pass_on).start()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert not holders(using, name)
    assert len(session.claims) == 1
    other.release()


def test_r7_an_event_loop_that_closes_before_the_reply_leaves_nothing(using: str, name: str, proxied: Proxied) -> None:
    proxy = proxied(using)
    session = shared_session(using)
    other = advisory_lock(name + "-other", using=using).acquire()
    loop = asyncio.new_event_loop()
    held = proxy.hold("reply")
    task = loop.create_task(advisory_lock(name, using=using).aacquire())
    while not held.data:
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    del task
    held.pass_on()
    eventually(lambda: not holders(using, name) and len(session.claims) == 1, "held, and nobody knows")
    other.release()
