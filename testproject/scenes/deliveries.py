"""Transfers as messages, each sent twice through a Redis stream, and one of their readers is killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import time
import uuid
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.db import connections

from testproject.databases import services
from testproject.replay import ReplayError
from testproject.replay.processes import SECONDS
from testproject.replay.scene import Column, Figures, Option, Scene, Stage, Way

from .models import Account, Receipt
from .wallet import fresh_accounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CLAIM_AFTER = 0.2  # seconds
OWNER = "consumer replay"  # nobody's account: what the replay makes, it clears away
START, AMOUNT = 1_000_000, 1

EACH = Way(
    "each",
    "Each delivery acts",
    'transfer("row", source, target, amount)',
    "The rows are locked and no money is made, but a message that is delivered twice moves it twice.",
    prevents=False,
)
ONCE = Way(
    "once",
    "A receipt in the same transaction",
    "Receipt.objects.get_or_create(message=message.id)",
    "The id of the message is stored in the transaction of its transfer, under a unique key. Another delivery finds it "
    "and does nothing, also after a consumer that was killed between commit and acknowledgement.",
    prevents=True,
)


class Deliveries(Scene):
    name = "consumer"
    help = "Transfers as messages, each delivered twice to several consumers, one of which is killed. Needs Redis."
    ways = (EACH, ONCE)
    options = (
        Option("messages", 100, "transfers per way"),
        Option("consumers", 3, "processes, without the one that is killed"),
    )
    columns = (
        Column("Messages", "messages"),
        Column("Transfers made", "acts"),
        Column("Acted more than once", "twice", alarm=True),
        Column("Never acted", "never", alarm=True),
        Column("Money made", "drift", alarm=True),
    )
    bars = ()

    @contextmanager
    def stage(self, given: Mapping[str, Any]) -> Iterator[Stage]:
        if find_spec("faststream") is None or find_spec("redis") is None:
            raise ReplayError("The consumer needs FastStream: run `make venv`, or install faststream[redis].")
        server = services().get("redis1")
        if server is None:
            raise ReplayError("The consumer needs Redis and no server is running: run `make services`.")
        url = f"redis://:{quote(server['password'], safe='')}@{server['host']}:{server['port']}/0"
        facts = {"consumers": given["consumers"]}
        yield Stage(lambda way: deliver(way, url, given["messages"], given["consumers"]), facts)

    def shown(self, way: Figures) -> bool:
        return way["twice"] > 0

    def problems(self, way: Figures) -> Iterator[str]:
        if way["never"] or way["drift"]:
            yield f"{way['never']} messages never acted, and {way['drift']} of money was made."
        if way["prevents"] and way["acts"] != way["messages"]:
            yield f"{way['messages']} messages acted {way['acts']} times."

    def story(self, way: Figures) -> str:
        sent = f"{way['messages']} messages, each sent twice and one delivered once more"
        return f"{way['title']}: {sent}, made {way['acts']} transfers."


def deliver(way: Way, url: str, messages: int, consumers: int) -> Figures:
    from .consumer import publish

    hub, *others = fresh_accounts(OWNER, messages + 1, START)
    # One account takes part in all transfers, in half of them as the source: locks taken in the order of the message
    # would end in deadlocks. The other account is the message's own, and tells how often it has acted.
    pairs = [(hub, other) if number % 2 else (other, hub) for number, other in enumerate(others)]
    bodies = [{"id": str(uuid.uuid4()), "source": a, "target": b, "amount": AMOUNT} for a, b in pairs]
    reader = {"once": way is ONCE, "url": url, "stream": f"wallet-transfers-{uuid.uuid4()}"}
    with ExitStack() as running:
        client = running.enter_context(redis_client(url, reader["stream"]))
        asyncio.run(publish(url, reader["stream"], [body for body in bodies for _ in range(2)]))
        client.expire(reader["stream"], SECONDS)  # should this process be killed
        doomed = running.enter_context(member("doomed", dies=True, **reader))
        doomed.join(SECONDS)
        if doomed.exitcode != -signal.SIGKILL:
            raise ReplayError("The consumer that was to die between commit and acknowledgement did not.")
        names = [f"member-{number}" for number in range(consumers)]
        members = [running.enter_context(member(name, dies=False, **reader)) for name in names]
        wait_until_empty(client, reader["stream"], members)
    balances = dict(Account.objects.filter(owner=OWNER).values_list("pk", "balance"))
    acts = [abs(START - balances[other]) // AMOUNT for other in others]
    Account.objects.filter(owner=OWNER).delete()
    Receipt.objects.filter(pk__in=[body["id"] for body in bodies]).delete()
    return {
        "messages": messages,
        "acts": sum(acts),
        "twice": sum(times > 1 for times in acts),
        "never": acts.count(0),
        "drift": sum(balances.values()) - START * len(balances),
    }


@contextmanager
def redis_client(url: str, stream: str) -> Iterator[Any]:
    """The stream is removed at the end."""
    import redis

    with redis.Redis.from_url(url) as client:
        try:
            yield client
            client.delete(stream)
        except redis.ConnectionError as error:
            raise ReplayError(f"Redis does not answer ({error}): run `make services`.") from error


@contextmanager
def member(name: str, **options: Any) -> Iterator[Any]:
    """A consumer process; killed at the end of the block, when it has nothing to do any more.

    Forked from this one, which has loaded everything: that takes seconds, and there are several.
    """
    from .consumer import consume

    connections.close_all()  # a connection must not be used on both sides of a fork
    options |= {"name": name, "claim_after": CLAIM_AFTER}
    process = multiprocessing.get_context("fork").Process(target=consume, kwargs=options, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def wait_until_empty(client: Any, stream: str, members: list[Any]) -> None:
    """Until every message was delivered and acknowledged."""
    deadline = time.monotonic() + SECONDS
    while True:
        (group,) = client.xinfo_groups(stream)
        if group["last-delivered-id"] == client.xinfo_stream(stream)["last-generated-id"] and not group["pending"]:
            return
        if not all(process.is_alive() for process in members):
            raise ReplayError("A consumer ended; what it has logged is on the standard error.")
        if time.monotonic() > deadline:
            raise ReplayError(f"There were messages left after {SECONDS} s.")
        time.sleep(0.02)
