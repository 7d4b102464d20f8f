"""retrying(): what the database has ended for the sake of another transaction is run again, as a whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import IntegrityError, OperationalError, connections, transaction
from django.db.models import F
from django.db.transaction import TransactionManagementError

from django_distlock import DeadlockDetected, LockNotAcquired, LockTimeout, advisory_lock, retrying, row_lock
from tests.data.app.models import Account
from tests.data.world import (
    accounts,
    another,
    ask,
    balances,
    everywhere,
    keep_snapshots,
    on_servers,
    rows_of,
    run,
    somebody_waits_for_a_row,
)
from tests.faults.server import is_mariadb

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.data.rival import Rival


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The longest pauses that retrying() would make."""
    asked: list[float] = []
    monkeypatch.setattr("random.uniform", lambda least, most: asked.append(most) or 0)
    return asked


def add(using: str, pks: list[int]) -> int:
    return rows_of(using, pks).update(balance=F("balance") + 10)


def locked(using: str, pks: list[int], **options: Any) -> None:
    """The rows stay locked to the end of the transaction."""
    with row_lock(rows_of(using, pks), **options):
        pass


def looped(function: Callable[..., Any], *arguments: Any, attempts: int = 5, using: str = "default") -> Any:
    for attempt in retrying(attempts, using=using):
        with attempt:
            return function(*arguments)
    raise AssertionError("the loop gave up without an error")


class Circle:
    """One run that becomes the victim of a deadlock, as the other has written more (MariaDB), or has looked later."""

    def __init__(self, rival: Rival, using: str) -> None:
        self.rival, self.using, self.runs = rival, using, 0
        self.mine, *self.theirs = accounts(using, *[0] * 4)
        for pk in self.theirs:
            rival.do("write", using, pk, 1)

    def run(self, write_theirs: Callable[[], Any]) -> str:
        self.runs += 1
        add(self.using, [self.mine])
        if self.runs == 1:
            if self.using == "postgres":
                run(self.using, "SET LOCAL deadlock_timeout = '10ms'")
            self.rival.start("take_next", self.using, self.mine)
            somebody_waits_for_a_row(self.using)
        write_theirs()
        return "done"

    def write(self) -> str:
        return self.run(lambda: add(self.using, self.theirs))

    def lock(self) -> str:
        return self.run(lambda: locked(self.using, self.theirs))

    def ended_well(self) -> bool:
        assert self.rival.hear() == "done"
        return self.runs == 2 and balances(self.using)[0] == 10


async def in_a_block(circle: Circle) -> str:
    async for attempt in retrying(using=circle.using):
        async with attempt:
            return await sync_to_async(circle.write)()
    raise AssertionError("the loop gave up without an error")


def awrite(circle: Circle) -> Any:
    @retrying(using=circle.using)
    async def work() -> str:
        return await sync_to_async(circle.write)()

    return work()


WAYS: dict[str, Callable[[Circle], Any]] = {
    "function": lambda circle: retrying(using=circle.using)(Circle.write)(circle),
    "row_lock": lambda circle: retrying(using=circle.using)(Circle.lock)(circle),
    "block": lambda circle: looped(circle.write, using=circle.using),
    "async function": lambda circle: asyncio.run(awrite(circle)),
    "async block": lambda circle: asyncio.run(in_a_block(circle)),
}


@on_servers
@pytest.mark.parametrize("way", WAYS)
def test_after_a_deadlock_the_whole_runs_again(rival: Rival, using: str, no_pause: list[float], way: str) -> None:
    """The error is Django's or, of row_lock, DeadlockDetected."""
    circle = Circle(rival, using)
    assert WAYS[way](circle) == "done"
    assert circle.ended_well()
    assert no_pause == [0.05]


def test_what_a_hook_raises_after_the_commit_runs_nothing_again() -> None:
    """What it raises may be the deadlock of a transaction of the hook's own."""
    runs: list[str] = []

    def hook() -> None:
        raise DeadlockDetected("of the hook")

    def work(kind: str) -> None:
        runs.append(kind)
        transaction.on_commit(hook)

    with pytest.raises(DeadlockDetected, match="of the hook"):
        retrying()(work)("plain")

    @retrying()
    async def awork() -> None:
        await sync_to_async(work)("async")

    with pytest.raises(DeadlockDetected, match="of the hook"):
        asyncio.run(awork())
    assert runs == ["plain", "async"]


@everywhere
@pytest.mark.parametrize("by_row_lock", [False, True])
def test_after_a_serialization_failure(rival: Rival, using: str, by_row_lock: bool) -> None:
    """40001, 1020, SQLITE_BUSY_SNAPSHOT: the row was written after the snapshot. row_lock calls it LockNotAcquired."""
    keep_snapshots(using)
    pks = accounts(using, 0)
    runs: list[int] = []

    @retrying(using=using)
    def work() -> None:
        runs.extend(balances(using))
        if len(runs) == 1:
            rival.do("add", using, pks[0], 1)
        if by_row_lock:
            locked(using, pks)
        add(using, pks)

    work()
    assert (runs, balances(using)) == ([0, 1], [11])


def test_after_a_wait_of_mysql(rival: Rival) -> None:
    """1205 ends the statement only; what was written before goes with it. A timeout of row_lock is an answer."""
    mine, other = accounts("mariadb", 0, 0)
    run("mariadb", f"SET SESSION innodb_lock_wait_timeout = {0 if is_mariadb() else 1}")
    rival.do("hold", "mariadb", [other], {})
    runs: list[int] = []

    @retrying(using="mariadb")
    def work() -> None:
        runs.append(add("mariadb", [mine]))
        try:
            add("mariadb", [other])
        finally:
            if len(runs) == 1:
                rival.do("release")

    work()
    assert (len(runs), balances("mariadb")) == (2, [10, 10])
    with rival.hold("mariadb", [other]), pytest.raises(LockTimeout):
        retrying(using="mariadb")(locked)("mariadb", [other], timeout=0.1)


def test_a_commit_that_fails_is_repeated_by_the_decorator_and_raised_by_a_block() -> None:
    """A block may have been left by ``return``, whose value nobody would doubt."""
    accounts("postgres", 0, 0)
    serializable = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE"
    run("postgres", serializable)
    first, second = Account.objects.using("postgres").order_by("pk")
    runs: list[list[int]] = []

    def skewed(other: Any) -> str:
        """Each reads both rows and writes one; the other commits first."""
        runs.append(balances("postgres"))
        add("postgres", [first.pk])
        if len(runs) % 2:
            ask(other, serializable)
            ask(other, "BEGIN")
            ask(other, "SELECT sum(balance) FROM dataapp_account")
            ask(other, "UPDATE dataapp_account SET balance = balance + 1 WHERE id = %s", second.pk)
            ask(other, "COMMIT")
        return "done"

    with another("postgres") as other:
        assert retrying(using="postgres")(skewed)(other) == "done"
        assert (runs, balances("postgres")) == ([[0, 0], [0, 1]], [10, 1])
        with pytest.raises(OperationalError, match="could not serialize"):
            looped(skewed, other, using="postgres")
    assert balances("postgres") == [10, 2]


def test_the_last_error_is_raised_and_others_at_once(no_pause: list[float]) -> None:
    runs: list[int] = []

    def fail(error: Exception) -> None:
        runs.append(Account.objects.create(owner="x").pk)
        raise error

    deadlock = DeadlockDetected("a circle")
    for attempts in (3, 1, 8):
        with pytest.raises(DeadlockDetected) as caught:
            retrying(attempts)(fail)(deadlock)
        assert (caught.value, len(runs)) == (deadlock, attempts)
        runs.clear()
    assert no_pause == [0.05, 0.1, *(0.05, 0.1, 0.2, 0.4, 0.8, 1, 1)], "the longest pauses"
    for error in (ZeroDivisionError(), IntegrityError(), LockNotAcquired("busy"), LockTimeout("busy")):
        with pytest.raises(type(error)):
            retrying()(fail)(error)
        with pytest.raises(type(error)):
            looped(fail, error)
    assert len(runs) == 8
    with pytest.raises(DeadlockDetected):
        looped(fail, deadlock, attempts=2)
    assert len(runs) == 10
    assert balances("default") == []


def refused() -> Any:
    return pytest.raises(TransactionManagementError, match=r"put retrying\(\) around atomic\(\)")


def test_refused_inside_a_transaction() -> None:
    def work() -> None:
        pytest.fail("ran")

    async def later() -> None:
        pytest.fail("ran")

    with transaction.atomic():
        with refused():
            retrying()(work)()
        with refused():
            async_to_sync(retrying()(later))()
        with refused():
            looped(work)
        assert not connections["default"].needs_rollback
    with refused():
        looped(retrying()(work))
    block: Any = transaction.atomic()
    block._from_testcase = True  # does not count
    with block:
        assert retrying()(accounts)("default", 1)
    connections["default"].set_autocommit(False)
    with refused():
        retrying()(work)()
    connections["default"].set_autocommit(True)


def test_bad_use() -> None:
    for wrong, kind in ((0, ValueError), (True, TypeError), ("5", TypeError), (len, TypeError)):
        with pytest.raises(kind, match="attempts"):
            retrying(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="using"):
        retrying(using=3)  # type: ignore[arg-type]

    async def later() -> None:
        """Never awaited."""

    def generator() -> Any:
        yield

    for function in (generator, Circle, 5):
        with pytest.raises(TypeError, match="retrying"):
            retrying()(function)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="decorate the async def"):
        retrying()(lambda: later())()
    with pytest.raises(TypeError, match="needs `with attempt:`"):
        for _ in retrying():
            pass
    # of a loop that is left; Python gives nobody the error of a generator that is thrown away
    attempts = iter(retrying())
    with next(attempts):
        raise DeadlockDetected("a circle")
    with pytest.raises(RuntimeError, match="nothing may follow"):
        attempts.close()  # type: ignore[attr-defined]


# -- async


@on_servers
def test_r11_no_other_task_is_in_the_transaction_or_has_its_lock(using: str, name: str) -> None:
    """All tasks of a loop share a thread and a connection; an attempt has its own."""
    lock = advisory_lock(name, using="memory")

    async def run_all() -> None:
        wrote, looked = asyncio.Event(), asyncio.Event()

        async def other() -> Any:
            await wrote.wait()
            found = [row async for row in Account.objects.using(using)], await lock.atry_acquire()
            looked.set()
            return found

        looking = asyncio.create_task(other())
        async for attempt in retrying(using=using):
            async with attempt:
                await Account.objects.using(using).acreate(owner="x")
                async with lock:
                    pass  # it is kept to the commit
                wrote.set()
                await looked.wait()
        assert await looking == ([], None)
        assert await Account.objects.using(using).acount() == 1
        lease = await lock.aacquire(timeout=5)
        await lease.arelease()

    asyncio.run(run_all())
