"""What row_lock does: order, transactions, errors, joins, and what the caller's session looks like after."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections, transaction
from django.db.models import Count, Q, Window
from django.db.models.functions import Rank
from django.db.transaction import TransactionManagementError

from django_distlock import LockLost, LockNotAcquired, LockTimeout, UnsupportedOperation, row_lock
from tests.data.app.models import Account, Currency, Entry, Node, Place, Restaurant, Wallet
from tests.data.world import (
    accounts,
    balances,
    everywhere,
    keep_snapshots,
    limits,
    odd_limits,
    on_servers,
    rows_of,
    run,
    sent,
)

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from tests.data.rival import Rival


def keys(rows: list[Any]) -> list[int]:
    return [row.pk for row in rows]


def busy(rows: Any, match: str | None = None, kind: type[Exception] = LockNotAcquired, **options: Any) -> None:
    with pytest.raises(kind, match=match) as caught:
        row_lock(rows, **options).__enter__()
    assert type(caught.value) is kind


@everywhere
def test_rows_come_locked_in_the_order_of_their_primary_keys(using: str) -> None:
    pks = accounts(using, 5, 4, 3)
    rows = rows_of(using, pks[::-1])
    for queryset in (rows, rows.order_by("balance"), rows.order_by("-pk").reverse(), rows.reverse(), rows.extra()):
        with row_lock(queryset) as locked:
            assert keys(locked) == pks
    with row_lock(rows.order_by("pk")[1:]) as locked:
        assert keys(locked) == pks[1:]
    with row_lock(rows.none()) as locked:
        assert locked == []


@everywhere
def test_what_the_block_wrote_is_committed_or_rolled_back(using: str) -> None:
    (pk,) = accounts(using, 1)
    with row_lock(Account, pk=pk, using=using) as account:
        Account.objects.using(using).update(balance=2)
    assert account.balance == 1
    with pytest.raises(ZeroDivisionError), row_lock(rows_of(using, [pk])):
        _ = Account.objects.using(using).update(balance=3) / 0
    assert balances(using) == [2]
    with transaction.atomic(using=using):  # a missing row is the model's own error and breaks no transaction
        with pytest.raises(Account.DoesNotExist):
            row_lock(Account, pk=pk + 1, using=using).__enter__()
        Account.objects.using(using).update(balance=4)
    assert balances(using) == [4]


@everywhere
def test_inside_atomic_the_rows_stay_locked_to_its_end(rival: Rival, using: str) -> None:
    pks = accounts(using, 1)
    with transaction.atomic(using=using):
        with row_lock(rows_of(using, pks)):
            pass
        rival.start("hold", using, pks, {})
        Account.objects.using(using).update(balance=7)
    assert rival.hear() == pks
    rival.do("release")
    assert balances(using) == [7]


@everywhere
def test_r7_after_busy_the_transaction_is_rolled_back_and_nothing_of_ours_is_left(rival: Rival, using: str) -> None:
    """MySQL alone would keep the transaction, and Django would commit half of it."""
    pks = accounts(using, 1, 2)
    connection: Any = connections[using]
    connection.transaction_mode = None  # SQLite: a transaction that does not begin with the write lock
    before = odd_limits(using)
    mine = rows_of(using, pks[1:])
    with rival.hold(using, pks[:1]):
        with transaction.atomic(using=using):
            if using != "default":  # there the rival keeps everybody from writing
                mine.update(balance=50)
            busy(rows_of(using, pks), kind=LockTimeout, timeout=1)
            with pytest.raises(TransactionManagementError):
                mine.update(balance=60)
        assert not connection.in_atomic_block
        busy(rows_of(using, pks), nowait=True)
        busy(rows_of(using, pks), timeout=0)
        if using != "default":
            with row_lock(mine, nowait=True) as rows:
                assert rows[0].balance == 2
    assert limits(using) == before
    with row_lock(rows_of(using, pks), timeout=1):
        assert limits(using) == before
    assert limits(using) == before
    assert balances(using) == [1, 2]


@everywhere
def test_a_row_that_was_written_after_the_snapshot(rival: Rival, using: str) -> None:
    """The server refuses the lock (40001, 1020, SQLITE_BUSY_SNAPSHOT), and the block may write nothing more."""
    keep_snapshots(using)
    first, second = accounts(using, 0, 0)
    with transaction.atomic(using=using):
        if using != "default":  # there it would keep everybody from writing
            rows_of(using, [second]).update(balance=7)
        balances(using)
        rival.do("add", using, first, 1)
        busy(rows_of(using, [first]), "since this transaction first read", timeout=5)
        with pytest.raises(TransactionManagementError):
            rows_of(using, [second]).update(balance=8)
    assert balances(using) == [1, 0]


@on_servers
def test_what_does_not_wait_says_so_and_gives_up_a_locked_table_as_well(rival: Rival, using: str) -> None:
    """NOWAIT and SKIP LOCKED are about rows, and would wait for a table lock for ever."""
    pks = accounts(using, 1)
    ways: list[tuple[dict[str, Any], str]] = [({"skip_locked": True}, "SKIP LOCKED"), ({"nowait": True}, "NOWAIT")]
    for options, words in ways:
        with sent(using) as texts, row_lock(rows_of(using, pks), **options):
            pass
        assert [text.split(" FOR UPDATE ")[1] for text in texts if " FOR UPDATE" in text] == [words]
    assert rival.lock(using, "Account", mode="access exclusive") == "held"
    for options, _ in ways:
        with pytest.raises(LockNotAcquired):
            row_lock(rows_of(using, pks), **options).__enter__()
    rival.leave()


@on_servers
def test_skip_locked_gives_disjoint_sets(rival: Rival, using: str) -> None:
    pks = accounts(using, 1, 2, 3, 4)
    queue = rows_of(using, pks).order_by("-balance")
    with rival.hold(using, pks[2:]), row_lock(queue[:1], skip_locked=True) as first:
        assert keys(first) == [pks[1]]
        with row_lock(rows_of(using, pks), skip_locked=True) as rest:
            assert keys(rest) == pks[:2]


def test_skip_locked_on_sqlite_skips_everything_while_somebody_writes(rival: Rival) -> None:
    """Also one who has autocommit off: there is no BEGIN that could take the lock then, a first write does."""
    pks = accounts("default", 1, 2)
    connection = connections["default"]
    with rival.hold("default", pks), row_lock(rows_of("default", pks), skip_locked=True) as rows:
        assert rows == []
        assert connection.in_atomic_block
    connection.set_autocommit(False)
    with row_lock(rows_of("default", pks), skip_locked=True) as rows:
        assert keys(rows) == pks
        assert rival.do("hold", "default", pks, {"skip_locked": True}) == []
    rival.do("release")
    connection.rollback()
    connection.set_autocommit(True)


def test_no_key_lets_a_foreign_key_be_inserted(rival: Rival) -> None:
    """PostgreSQL: an insert that refers to the row takes FOR KEY SHARE on it."""
    node = Node.objects.using("postgres").create(name="parent")
    insert = f"INSERT INTO dataapp_node (name, parent_id) VALUES ('child', {node.pk})"
    for no_key in (True, False):
        with row_lock(Node, pk=node.pk, using="postgres", no_key=no_key):
            assert rival.do("attempt", "postgres", insert) is no_key


def test_a_table_without_row_locks_is_refused_and_looked_up_again() -> None:
    lock = row_lock(Currency, pk="EUR", using="mariadb")
    run("mariadb", "ALTER TABLE dataapp_currency ENGINE=MyISAM")
    try:
        with pytest.raises(UnsupportedOperation, match=r"MyISAM.*Currency\.objects\.advisory_row_lock"):
            lock.__enter__()
        assert not connections["mariadb"].in_atomic_block
    finally:
        run("mariadb", "ALTER TABLE dataapp_currency ENGINE=InnoDB")
    with pytest.raises(Currency.DoesNotExist):
        lock.__enter__()


def test_a_connection_closed_inside_the_block_is_a_loss() -> None:
    """Django leaves the transaction without a word, and what comes after it is written without the lock."""
    (pk,) = accounts("postgres", 1)
    with pytest.raises(LockLost, match="closed inside the block"), row_lock(Account, pk=pk, using="postgres"):
        connections["postgres"].close()


# -- joins: what the engine can lock is locked, each row once; what it cannot lock it refuses


def nodes(using: str) -> QuerySet[Node]:
    """A root and its child."""
    root = Node.objects.using(using).create(name="root")
    Node.objects.using(using).create(name="child", parent=root)
    return Node.objects.using(using)


def entered(using: str, entries: int) -> Wallet:
    wallet: Wallet = Wallet.objects.using(using).create(owner="ann")
    for _ in range(entries):
        Entry.objects.using(using).create(wallet=wallet)
    return wallet


OUTER = {
    "select_related": lambda rows: rows.select_related("parent"),
    "or": lambda rows: rows.filter(Q(parent__name="root") | Q(name="root")),
    "reverse": lambda rows: rows.filter(children__isnull=True),
}


@everywhere
def test_a_row_that_may_be_missing_is_locked_where_the_engine_can(using: str) -> None:
    """PostgreSQL refuses, in a transaction that is broken by it; of=("self",) is for every engine."""
    every = nodes(using)
    for case, query in OUTER.items():
        rows = query(every)
        if using == "postgres":
            with transaction.atomic(using):
                with pytest.raises(UnsupportedOperation, match="nullable side"):
                    row_lock(rows).__enter__()
                assert connections[using].needs_rollback
        else:
            with row_lock(rows) as locked:
                assert locked, case
        with row_lock(rows, of=("self",)) as locked:
            assert locked, case


@everywhere
def test_rows_that_stand_for_others_are_locked_where_the_engine_can(using: str) -> None:
    nodes(using)
    every = Node.objects.using(using)
    ranked = every.annotate(rank=Window(Rank(), order_by="pk"))
    for rows in (every.distinct(), every.annotate(number=Count("pk")), ranked):
        if using == "postgres":
            with pytest.raises(UnsupportedOperation, match="FOR UPDATE is not allowed"):
                row_lock(rows).__enter__()
            assert not connections[using].in_atomic_block
        else:
            with row_lock(rows) as locked:
                assert len(locked) == 2


@everywhere
def test_rows_that_are_there_are_locked_with_it(using: str) -> None:
    wallet = entered(using, 1)
    entries = Entry.objects.using(using).select_related("wallet")
    for of in ((), ("self",), ("self", "wallet")):
        with row_lock(entries, of=of) as (entry,):
            assert entry.wallet == wallet
    place = Restaurant.objects.using(using).create(name="Inn", seats=4)
    with row_lock(Restaurant.objects.using(using).filter(name="Inn"), of=("self", "place_ptr")) as rows:
        assert rows == [place]
    with row_lock(nodes(using).select_related("parent").filter(parent__name="root"), of=("self", "parent")) as rows:
        assert [node.parent.name for node in rows] == ["root"]
    with row_lock(Node.objects.using(using).filter(parent__isnull=True)) as rows:  # no join is left
        assert [node.name for node in rows] == ["root"]
    with row_lock(Node.objects.using(using).prefetch_related("children")) as rows:
        assert [[child.name for child in node.children.all()] for node in rows] == [["child"], []]


@everywhere
def test_the_row_of_a_parent_is_locked_if_only_fields_of_the_child_are_read(using: str) -> None:
    inn = Restaurant.objects.using(using).create(name="Inn", seats=4)

    def rival() -> None:
        try:
            with row_lock(Place.objects.using(using).filter(pk=inn.pk), nowait=True):
                pass
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool, row_lock(Restaurant.objects.using(using).only("seats")) as rows:
        with pytest.raises(LockNotAcquired):
            pool.submit(rival).result()
        assert rows == [inn]


@everywhere
def test_a_row_that_is_found_twice_is_one_instance(using: str) -> None:
    """Two would overwrite each other when they are saved in turn."""
    found = Wallet.objects.using(using).filter(entries__open=True)
    first = entered(using, 3)
    with transaction.atomic(using):
        assert found.lock_row() == first
    second = entered(using, 2)
    with row_lock(found) as wallets:
        assert wallets == [first, second]
        for wallet in wallets:
            wallet.balance += 1
            wallet.save()
    assert list(Wallet.objects.using(using).values_list("balance", flat=True)) == [1, 1]
    with row_lock(found.order_by("pk")[:4]) as wallets:
        assert wallets == [first, second]
    with transaction.atomic(using), pytest.raises(Wallet.MultipleObjectsReturned):
        found.lock_row()
