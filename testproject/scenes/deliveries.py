"""Transfers as messages, each sent twice through a Redis stream, and one of their readers is killed."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from testproject.databases import redis_url, services
from testproject.replay import ReplayError
from testproject.replay.processes import SECONDS, Team
from testproject.replay.scene import Column, Figures, Option, Scene, Way, way

from .models import Account, Receipt
from .wallet import fresh_accounts

if TYPE_CHECKING:
    from collections.abc import Callable

CLAIM_AFTER = 0.2  # seconds
OWNER = "consumer replay"  # nobody's account: what the replay makes, it clears away
START, AMOUNT = 1_000_000, 1


@way("Each delivery acts", 'transfer("row", source, target, amount)', prevents=False)
def each() -> Callable[..., bool]:
    """The rows are locked and no money is made, but a message that is delivered twice moves it twice."""
    from .consumer import act_each_time

    return act_each_time


@way("A receipt in the same transaction", "Receipt.objects.get_or_create(message=message.id)")
def once() -> Callable[..., bool]:
    """The id of the message is stored in the transaction of its transfer, under a unique key. Another delivery finds it
    and does nothing, also after a consumer that was killed between commit and acknowledgement."""
    from .consumer import act_once

    return act_once


class Deliveries(Scene):
    name = "consumer"
    help = "Transfers as messages, each delivered twice to several consumers, one of which is killed. Needs Redis."
    ways = (each, once)
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
    fault = ("twice",)

    story = "{messages} messages, each sent twice and one delivered once more, made {acts} transfers"

    def act(self, way: Way, messages: int, consumers: int) -> list[Figures]:
        if find_spec("faststream") is None or find_spec("redis") is None:
            raise ReplayError("The consumer needs FastStream: run `make venv`, or install faststream[redis].")
        server = services().get("redis1")
        if server is None:
            raise ReplayError("The consumer needs Redis and no server is running: run `make services`.")
        return [deliver(way, redis_url(server, quote(server["password"], safe="")), messages, consumers)]


def deliver(way: Way, url: str, messages: int, consumers: int) -> Figures:
    hub, *others = fresh_accounts(OWNER, messages + 1, START)
    # One account takes part in all transfers, in half of them as the source: locks taken in the order of the message
    # would end in deadlocks. The other account is the message's own, and tells how often it has acted.
    pairs = [(hub, other) if number % 2 else (other, hub) for number, other in enumerate(others)]
    bodies = [{"id": str(uuid.uuid4()), "source": a, "target": b, "amount": AMOUNT} for a, b in pairs]
    deliver_all(url, bodies, consumers, way.run())
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
        "errors": [],
    }


def deliver_all(url: str, bodies: list[dict[str, Any]], consumers: int, act: Callable[..., bool]) -> None:
    """Send each message twice, and return when all of them were acknowledged."""
    import redis

    from .consumer import consume, publish

    stream = f"wallet-transfers-{uuid.uuid4()}"
    reader = {"url": url, "stream": stream, "claim_after": CLAIM_AFTER}
    try:
        with redis.Redis.from_url(url) as client, Team() as team:
            asyncio.run(publish(url, stream, [body for body in bodies for _ in range(2)]))
            client.expire(stream, SECONDS)  # should this process be killed
            doomed = team.start(consume, act, dies=True, name="doomed", **reader).process
            doomed.join(SECONDS)
            if doomed.exitcode != -signal.SIGKILL:
                raise ReplayError("The consumer that was to die between commit and acknowledgement did not.")
            members = [team.start(consume, act, dies=False, name=f"member-{n}", **reader) for n in range(consumers)]
            wait_until_empty(client, stream, [member.process for member in members])
            for member in members:
                member.process.kill()
            client.delete(stream)
    except redis.ConnectionError as error:
        raise ReplayError(f"Redis does not answer ({error}): run `make services`.") from error


def wait_until_empty(client: Any, stream: str, processes: list[Any]) -> None:
    """Until every message was delivered and acknowledged."""
    deadline = time.monotonic() + SECONDS
    while True:
        (group,) = client.xinfo_groups(stream)
        if group["last-delivered-id"] == client.xinfo_stream(stream)["last-generated-id"] and not group["pending"]:
            return
        if not all(process.is_alive() for process in processes):
            raise ReplayError("A consumer ended; what it has logged is on the standard error.")
        if time.monotonic() > deadline:
            raise ReplayError(f"There were messages left after {SECONDS} s.")
        time.sleep(0.02)
