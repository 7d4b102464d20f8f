"""Messages that are delivered twice: at the same time on every engine, after a failure, and after a SIGKILL."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command

from testproject.wallet.consumer import GROUP, Consumer, redis_app
from testproject.wallet.deliveries import WayResult, problems
from testproject.wallet.messages import ACT, TransferMessage, act_once
from testproject.wallet.models import Account, ConsumerRun, Receipt
from testproject.wallet.moves import Bank
from testproject.wallet.streams import redis_url
from tests.support.processes import Servant
from tests.support.sizes import LONG

from .databases import manage
from .movers import Mover

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from django.test import Client

pytestmark = pytest.mark.tier2

MESSAGES, START = 40, 1000


@pytest.fixture(scope="module")
def movers(django_db_setup: None) -> Iterator[list[Servant]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Servant(Mover)) for _ in range(2)]


@pytest.fixture(params=["default", "postgres", "mariadb"])
def database(request: pytest.FixtureRequest, databases: None) -> Iterator[str]:
    yield request.param
    Account.objects.using(request.param).all().delete()
    Receipt.objects.using(request.param).all().delete()


def accounts(database: str = "default") -> list[int]:
    Account.objects.using(database).bulk_create([Account(owner="ann", balance=START) for _ in range(2)])
    return list(Account.objects.using(database).values_list("pk", flat=True))


def body(pks: list[int], **changes: Any) -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "source": pks[0], "target": pks[1], "amount": 1} | changes


def moved(database: str = "default") -> int:
    return Account.objects.using(database).latest("pk").balance - START


@pytest.mark.parametrize(("way", "expected"), [("each", 2 * MESSAGES), ("once", MESSAGES)])
def test_two_deliveries_at_once(movers: list[Servant], database: str, way: str, expected: int, tmp_path: Path) -> None:
    """Without a receipt each of them acts; with it exactly one, whichever."""
    pks = accounts(database)
    bodies = [body(pks) for _ in range(MESSAGES)]
    shared = tmp_path / "rounds"
    shared.write_bytes(bytes(16))
    for place, mover in enumerate(movers):
        mover.start("deliver", way, database, bodies, str(shared), place)
    rounds = list(zip(*(mover.hear(60) for mover in movers), strict=True))
    assert sum(sum(both) for both in rounds) == expected == moved(database)
    assert set(rounds) <= ({(True, True)} if way == "each" else {(True, False), (False, True)})


class Broken(Bank):
    def transfer(self, source: int, target: int, amount: int) -> bool:
        super().transfer(source, target, amount)
        raise OSError("lost")


def test_a_failure_leaves_no_receipt_and_the_next_delivery_acts(database: str) -> None:
    message = TransferMessage.parse(body(accounts(database)))
    with pytest.raises(OSError, match="lost"):
        act_once(Broken("row", database), message)
    assert not Receipt.objects.using(database).exists()
    assert [act_once(Bank("row", database), message) for _ in range(2)] == [True, False]
    assert moved(database) == 1


def test_a_refusal_is_final(database: str) -> None:
    """There was no money at the first delivery; whether the second one finds some is not to matter."""
    pks = accounts(database)
    message = TransferMessage.parse(body(pks, amount=START + 1))
    assert not act_once(Bank("row", database), message)
    Account.objects.using(database).update(balance=2 * START)
    assert not act_once(Bank("row", database), message)
    assert moved(database) == START


@pytest.mark.parametrize("wrong", [{"id": "7"}, {"id": 7}, {"amount": 0}, {"amount": "1"}, {"target": 1}])
def test_bad_messages(wrong: dict[str, Any]) -> None:
    assert TransferMessage.parse(body([1, 2])).amount == 1
    with pytest.raises(ValueError, match="not a transfer"):
        TransferMessage.parse(body([1, 2]) | wrong)
    with pytest.raises(ValueError, match="not a transfer"):
        TransferMessage.parse(b"{")


@pytest.mark.timeout(60)
def test_a_failed_message_comes_again_and_a_bad_one_does_not(databases: None) -> None:
    """By the real application on a real Redis: acknowledged is what was done or can never be."""
    stream, good, calls = f"test-{uuid.uuid4()}", body([1, 2]), []

    def fails_once(bank: Bank, message: TransferMessage) -> bool:
        if str(message.id) != good["id"]:
            return act_once(bank, message)
        calls.append(message)
        if len(calls) == 1:
            raise OSError("lost")
        return True

    async def scene() -> int:
        over = asyncio.Event()
        consumer = Consumer(act=fails_once, committed=over.set)
        app = redis_app(consumer, url=redis_url(), stream=stream, name="one", claim_after=0.1)
        await app.start()
        client = await app.broker.connect()
        try:
            for sent in ("rubbish", [1], body([10**9, 10**9 + 1]), good):
                await app.broker.publish(sent, stream=stream)
            async with asyncio.timeout(30):
                await over.wait()
            await app.stop()  # which waits for the acknowledgement
            return (await client.xpending(stream, GROUP))["pending"]
        finally:
            await client.delete(stream)
            await client.aclose()

    assert asyncio.run(scene()) == 0
    assert len(calls) == 2


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "mariadb"] if LONG else ["sqlite"])
def test_the_replay(engine: str, migrated: Callable[[str], dict[str, str]]) -> None:
    """The killed consumer's message acts a third time without a receipt."""
    done = manage("replay_consumer", "--messages=10", "--consumers=2", "--json", environment=migrated(engine))
    assert done.returncode == 0, done.stderr
    each, once = json.loads(done.stdout)["ways"]
    assert each["acts"] >= 21  # or more: what is slow on a busy machine is delivered once more as well
    assert (each["twice"], each["drift"]) == (10, 0)
    assert (once["acts"], once["twice"], once["never"], once["drift"]) == (10, 0, 0, 0)


def result(prevents: bool = True, **figures: int) -> WayResult:
    known = {"messages": 9, "acts": 9, "twice": 0, "never": 0, "drift": 0} | figures
    return WayResult(slug="way", title="Way", prevents=prevents, seconds=1.0, **known)


@pytest.mark.parametrize(
    ("way", "found"),
    [
        (result(), 0),
        (result(acts=10, twice=1), 1),
        (result(acts=8, never=1), 2),
        (result(drift=-1), 1),
        (result(False), 1),
        (result(False, acts=19, twice=9), 0),
    ],
)
def test_the_verdict(way: WayResult, found: int) -> None:
    assert len(list(problems([way]))) == found


@pytest.mark.parametrize("servers", [None, {"redis1": {"host": "127.0.0.1", "port": 1, "password": "x"}}])
def test_without_redis_the_command_names_the_cure(
    servers: dict[str, Any] | None, databases: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state = tmp_path / "state.json"
    if servers:
        state.write_text(json.dumps(servers))
    monkeypatch.setenv("DISTLOCK_SERVICES", str(state))
    with pytest.raises(CommandError, match="make services"):
        call_command("replay_consumer", messages=1, json=True)
    Account.objects.all().delete()


@pytest.mark.django_db
def test_the_page(client: Client) -> None:
    assert "manage.py replay_consumer" in client.get("/wallet/").text
    ways = [{"title": "Each delivery acts", "messages": 9, "acts": 19, "twice": 9, "never": 0}]
    figures = {"engine_name": "SQLite", "engine_version": "3.40", "consumers": 3, "problems": ["each: <broken>"]}
    ConsumerRun.objects.create(engine="sqlite", result={**figures, "ways": ways})
    page = client.get("/wallet/").text
    assert '<strong class="alarm">9</strong>' in page
    assert "each: &lt;broken&gt;" in page


def test_every_way_has_its_deed() -> None:
    assert list(ACT) == ["each", "once"]
