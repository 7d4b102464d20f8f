"""Start a server for every way, let them take turns, and look for duplicates in the database afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from django.db import connections

from benchmarks.failures import reason
from benchmarks.ratios import Spread, paired
from benchmarks.servers import SERVERS
from benchmarks.signups.clients import MADE, TAKEN, Crowd
from benchmarks.signups.models import TABLES, Account, Door, UniqueAccount
from benchmarks.signups.ways import of
from testproject.replay.server import Server

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from benchmarks.signups.clients import Answers
    from benchmarks.signups.ways import Way

PROCESSES, THREADS = 4, 2  # of each server: together as many as there are clients
LEAD_IN, WARM_UP = 0.05, 0.5
HASH_ITERATIONS = 2_000  # 0.4 ms: Django's own number, 300 ms, would hide every lock behind it
ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "benchmarks.signups.settings",
    "DISTLOCK_CONN_MAX_AGE": "600",
    "DISTLOCK_DEMO_HASH_ITERATIONS": str(HASH_ITERATIONS),
}


@dataclass
class SignUps:
    """What one way did: requests per second round by round, and what is in the database in the end."""

    group: str
    entry: str
    exclusive: bool
    rates: list[float] = field(default_factory=list)
    made: int = 0  # answered with 201
    taken: int = 0  # answered with 409
    rows: int = 0
    duplicates: int = 0  # rows beyond the first of an address
    error: str = ""
    ratio: Spread | None = None  # to the unique constraint, between slices of one round

    @property
    def rate(self) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.rates)

    def count(self, answers: Answers) -> None:
        """Take in the answers of a slice; RuntimeError if one is neither a yes nor a no."""
        statuses = Counter(answers.statuses)
        self.made += statuses.pop(MADE, 0)
        self.taken += statuses.pop(TAKEN, 0)
        if statuses:
            raise RuntimeError(f"answers by status: {dict(statuses)}")

    def faults(self) -> list[str]:
        """Say what must not be; a way without a lock that makes no duplicate proves nothing for the others."""
        if self.error:
            return [self.error]
        found = []
        if self.rows != self.made:
            found.append(f"{self.made} sign-ups were confirmed, {self.rows} are in the database")
        if self.exclusive and self.duplicates:
            found.append(f"{self.duplicates} duplicates")
        elif not self.exclusive and not self.duplicates:
            found.append("no duplicate was made, so the check proves nothing")
        return found


def measure(group: str, rounds: int, seconds: float) -> list[SignUps]:
    """Have the servers of all ways up at once and let each answer for a slice in every round, in changing order."""
    alias, ways, run = database(group), of(group), uuid.uuid4().hex[:8]
    results = {way.slug: SignUps(group, way.label, way.exclusive) for way in ways}
    with tables(alias), servers(alias, ways) as running:
        crowds = {slug: Crowd(server.port, slug, run) for slug, server in running.items()}

        def slice_of(slug: str, length: float) -> int:
            result = results[slug]
            if result.error:
                return 0
            try:
                answers = crowds[slug].sign_up(LEAD_IN, length)
                result.count(answers)
            except (OSError, RuntimeError, ValueError) as error:
                result.error = f"{reason(error)}\n{running[slug].log_tail(12)}"
                return 0
            return answers.counted

        for slug in crowds:
            slice_of(slug, WARM_UP)
        order, chance = list(crowds), random.Random(1)
        for _ in range(rounds):
            chance.shuffle(order)
            for slug in order:
                counted = slice_of(slug, seconds)
                if not results[slug].error:
                    results[slug].rates.append(counted / seconds)
        inspect(alias, results)
    rows = list(results.values())
    for row in rows:
        if row.rates and rows[0].rates:
            row.ratio = paired(row.rates, rows[0].rates)
    return rows


def database(group: str) -> str:
    """Return Django's alias for the database of a group."""
    server: Any = SERVERS[group]
    return str(server.alias)


@contextlib.contextmanager
def tables(alias: str) -> Generator[None]:
    """Have the tables while the block runs."""
    drop(alias)
    with connections[alias].schema_editor() as editor:
        for model in TABLES:
            editor.create_model(model)
    Door.objects.using(alias).create(pk=1)
    try:
        yield
    finally:
        drop(alias)


def drop(alias: str) -> None:
    """Drop the tables that are there."""
    there = connections[alias].introspection.table_names()
    with connections[alias].schema_editor() as editor:
        for model in TABLES:
            if model._meta.db_table in there:
                editor.delete_model(model)


@contextlib.contextmanager
def servers(alias: str, ways: Sequence[Way]) -> Generator[dict[str, Server]]:
    """Have a server for each way, which are started and stopped side by side."""
    running = {way.slug: Server(workers=PROCESSES, threads=THREADS) for way in ways}
    started = []
    with ThreadPoolExecutor(len(ways)) as pool:
        try:
            with mock.patch.dict(os.environ, ENVIRONMENT | {"DB": alias}):
                os.environ.pop("DISTLOCK_DEMO_DB", None)  # the name of the benchmark's SQLite file
                starts = [pool.submit(server.__enter__) for server in running.values()]
                started = [start.result() for start in wait(starts).done if start.exception() is None]
            for start in starts:
                start.result()
            yield running
        finally:
            list(pool.map(lambda server: server.__exit__(None, None, None), started))


def inspect(alias: str, results: dict[str, SignUps]) -> None:
    """Count the rows and the duplicates of every way."""
    for model in (Account, UniqueAccount):
        emails = Counter(model.objects.using(alias).values_list("email", flat=True))
        for email, count in emails.items():
            result = results[email.partition(".")[0]]
            result.rows += count
            result.duplicates += count - 1
