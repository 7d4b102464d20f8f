"""Processes that move money between the test project's accounts as fast as they can, in step with each other."""

from __future__ import annotations

import mmap
import os
import random
import struct
import time
from typing import TYPE_CHECKING

from django_distlock import DistlockError
from testproject.wallet.messages import ACT, TransferMessage
from testproject.wallet.moves import Bank
from tests.support.sizes import be_polite

if TYPE_CHECKING:
    from tests.support.child import Link

PATIENCE = 60.0  # seconds


class Step:
    """Two processes that begin every round together: each writes its own round into a file and looks at the other's.

    A round lasts a few milliseconds, too short to be begun by a message.
    """

    def __init__(self, path: str, place: int) -> None:
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 16)
        self.place = place

    def together(self, number: int) -> None:
        struct.pack_into("q", self.memory, 8 * self.place, number)
        deadline = time.monotonic() + PATIENCE
        while struct.unpack_from("q", self.memory, 8 * (1 - self.place))[0] < number:
            os.sched_yield()
            if time.monotonic() > deadline:
                raise TimeoutError("The other process did not come to the round.")


class Mover:
    """The deeds of one process; errors are what a caller would have seen."""

    def __init__(self, link: Link) -> None:
        be_polite()
        self.random = random.Random(os.getpid())

    def withdraw(self, bank: list[str], pks: list[int], amount: int, path: str, place: int) -> list[bool]:
        """One withdrawal from each account, each at the same time as the other process's; whether it was paid."""
        step = Step(path, place)
        paid = []
        for number, pk in enumerate(pks, 1):
            step.together(number)
            paid.append(Bank(*bank).withdraw(pk, amount))
        return paid

    def deliver(self, way: str, database: str, bodies: list[dict[str, object]], path: str, place: int) -> list[bool]:
        """Each message at the same time as the other process; whether money was moved by it here."""
        step = Step(path, place)
        moved = []
        for number, body in enumerate(bodies, 1):
            step.together(number)
            moved.append(ACT[way](Bank("row", database), TransferMessage.parse(body)))
        return moved

    def transfer(self, bank: list[str], pks: list[int], times: int) -> dict[str, int]:
        """Random transfers, any account to any other; how many found the money, and how many failed and why."""
        outcome = {"done": 0, "refused": 0}
        for _ in range(times):
            source, target = self.random.sample(pks, 2)
            try:
                kind = "done" if Bank(*bank).transfer(source, target, self.random.randint(1, 500)) else "refused"
            except DistlockError as error:
                kind = type(error).__name__
            outcome[kind] = outcome.get(kind, 0) + 1
        return outcome
