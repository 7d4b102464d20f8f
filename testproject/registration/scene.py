"""The ways to register, side by side, and the race: one address many times at once, and many addresses."""

from __future__ import annotations

import secrets
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.db import connection
from django.db.models import Count

from testproject.replay import ReplayError, scene
from testproject.replay.crowd import Crowd, Visitor, span, times
from testproject.replay.scene import Bars, Column, Figures, Option, Scene, Stage, extra, listed, many
from testproject.replay.server import Server

from .held import log_in_while_held
from .models import Account

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from testproject.replay.crowd import Answer

# Reserved for documentation (RFC 2606): nobody's address, and easy to clear away.
DOMAIN = "replay.example"
PASSWORD = secrets.token_urlsafe(16)


@dataclass(frozen=True, slots=True)
class Way(scene.Way):
    """`prevents`: does it promise one account per address? `lock_name` is the advisory lock that a sign-up takes, {key}
    being the case-folded address."""

    lock_name: str | None = None

    @property
    def url_name(self) -> str:
        return f"register-{self.slug}"


NONE = Way(
    "none",
    "No lock",
    "",
    "Check, hash the password, insert. Two requests that both check before either inserts make two accounts.",
    prevents=False,
)
TABLE = Way(
    "table",
    "Table lock",
    "@table_lock(Account)",
    "The table locked around check and insert, against code too that knows of no agreement. On MySQL and MariaDB "
    "those who only read the table wait as well, log-ins among them.",
    prevents=True,
)
ROW = Way(
    "row",
    "Row lock",
    "with row_lock(Door, pk=Door.REGISTRATION)",
    "One row that every registration locks: the row of an account that does not exist yet cannot be locked.",
    prevents=True,
)
ADVISORY = Way(
    "advisory",
    "Advisory lock",
    '@advisory_lock("register")',
    "One name for all registrations: they go one at a time, and nobody else waits.",
    prevents=True,
    lock_name="register",
)
PER_EMAIL = Way(
    "advisory-per-email",
    "Advisory lock per address",
    '@advisory_lock("register:{sign_up.key}")',
    "One name per address: only registrations of the same address wait for each other.",
    prevents=True,
    lock_name="register:{key}",
)
WAYS = (NONE, TABLE, ROW, ADVISORY, PER_EMAIL)


def race_is_possible(engine: str, atomic_requests: bool) -> bool:
    """Whether requests without a lock can overtake each other at all.

    With ATOMIC_REQUESTS on SQLite, and transactions that begin with BEGIN IMMEDIATE as in these settings, the whole
    request holds the one write lock that a SQLite file has: there is no race to show.
    """
    return not (engine == "sqlite" and atomic_requests)


class Race:
    """A running server, its clients, and the account that logs in meanwhile."""

    def __init__(self, server: Server, crowd: Crowd, *, identical: int, distinct: int) -> None:
        self.server, self.crowd, self.identical, self.distinct = server, crowd, identical, distinct
        self.run, self.bursts = secrets.token_hex(4), 0
        email = f"regular-{self.run}@{DOMAIN}"
        Account.objects.create(email=email, password=make_password(PASSWORD))
        self.log_in = Visitor.arrive(server.port, "/login/").post({"email": email, "password": PASSWORD})

    def act(self, way: Way) -> Figures:
        figures = {
            "identical": self.burst(way, times=self.identical),
            "distinct": self.burst(way, addresses=self.distinct) if self.distinct else None,
            "log_in_while_held": None,
            "proof_problem": "",
        }
        if way.lock_name is not None:
            self.bursts += 1
            email = self.address()
            name = way.lock_name.format(key=email)
            try:
                figures["log_in_while_held"] = log_in_while_held(name, *self.sign_ups(way, [email]), self.log_in, email)
            except ReplayError as error:
                figures["proof_problem"] = str(error)
        return figures

    def burst(self, way: Way, *, addresses: int = 1, times: int = 1) -> Figures:
        """Send so many addresses so many times, all at once."""
        self.bursts += 1
        emails = [self.address(number) for number in range(addresses)]
        sign_ups, log_ins = self.crowd.fire(self.sign_ups(way, emails * times), self.log_in)
        per_address = Account.objects.filter(email__in=emails).values("email").annotate(made=Count("pk")).order_by()
        return phase(sign_ups, log_ins, list(per_address.values_list("made", flat=True)), addresses)

    def address(self, number: int = 0) -> str:
        return f"scanner-{self.run}-{self.bursts}-{number}@{DOMAIN}"

    def sign_ups(self, way: Way, emails: Sequence[str]) -> list[Any]:
        visitor = Visitor.arrive(self.server.port, f"/register/{way.slug}/")
        return [visitor.post({"email": email, "password": PASSWORD}) for email in emails]


def phase(sign_ups: Sequence[Answer], log_ins: Sequence[Answer], made: Sequence[int], addresses: int) -> Figures:
    """One burst through one way; `made` is the number of accounts of each address that has any.

    `duplicates` are accounts beyond the first of an address; `failed` counts the sign-ups and log-ins without a proper
    answer, and `errors` has each kind of failure once; `processes` is how many server processes answered.
    """
    failed = [answer for answer in sign_ups if answer.status not in (201, 409, 503)]
    failed += [answer for answer in log_ins if answer.status != 200]
    return {
        "requests": len(sign_ups),
        "addresses": addresses,
        "accounts": sum(made),
        "duplicates": sum(made) - len(made),
        "statuses": dict(sorted(Counter(str(answer.status) for answer in sign_ups).items())),
        "failed": len(failed),
        "errors": sorted({f"{answer.status} {answer.error}".strip() for answer in failed}),
        "processes": len({answer.process for answer in sign_ups} - {None}),
        "per_second": round(len(sign_ups) / span(sign_ups), 1),
        "sign_ups": times([answer.seconds for answer in sign_ups]),
        "log_ins": times([answer.seconds for answer in log_ins]),
    }


def busiest(way: Figures) -> Figures:
    """Its burst with the most work: that of different addresses, if there was one."""
    return way["distinct"] or way["identical"]


class Registration(Scene):
    name = "registration"
    help = "Send sign-ups to a real server with 4 processes, the same one many times at once, and different ones."
    ways = WAYS
    options = (
        Option("identical", 200, "sign-ups with one address per way"),
        Option("distinct", 60, "sign-ups with as many addresses per way", least=0),
    )
    columns = (
        Column("Sign-ups", lambda row: f"{row['requests']} {row['kind']}"),
        Column("Accounts", "accounts"),
        Column("Duplicates", "duplicates", alarm=True),
        Column("Answers", lambda row: listed(row["statuses"])),
        Column("Failed", "failed", alarm=True),
        Column("Sign-up ms", lambda row: "{p50:.0f} / {p99:.0f}".format(**row["sign_ups"])),
        Column("Log-in ms", lambda row: "{p50:.0f} / {p99:.0f}".format(**row["log_ins"])),
        Column("Per second", lambda row: f"{row['per_second']:.0f}"),
    )
    bars = (
        Bars(
            "Accounts made from {identical[requests]} sign-ups with one address",
            lambda way: way["identical"]["accounts"],
            lambda way: f"{way['identical']['accounts']}{extra(way['identical']['duplicates'])}",
            alarm=lambda way: way["identical"]["duplicates"],
        ),
        Bars(
            "Time to log in meanwhile: median (bar) and 99th percentile (line)",
            lambda way: busiest(way)["log_ins"]["p50"],
            lambda way: "{p50:.0f} / {p99:.0f} ms".format(**busiest(way)["log_ins"]),
            reach=lambda way: busiest(way)["log_ins"]["p99"],
        ),
    )

    @contextmanager
    def stage(self, given: Mapping[str, Any]) -> Iterator[Stage]:
        Account.objects.filter(email__endswith=f"@{DOMAIN}").delete()
        with Crowd() as crowd, Server(threads=crowd.processes * crowd.threads + 8) as server:
            race = Race(server, crowd, identical=given["identical"], distinct=given["distinct"])
            # Every server process loads what it loads at its first request: the way that comes first must not pay.
            race.burst(NONE, addresses=crowd.processes * crowd.threads)
            facts = {
                "atomic_requests": bool(connection.settings_dict["ATOMIC_REQUESTS"]),
                "server_processes": server.workers,
                "client_processes": crowd.processes,
                "client_threads": crowd.threads,
                "hash_iterations": settings.PASSWORD_HASH_ITERATIONS,
            }
            yield Stage(race.act, facts, server.log_tail)

    def shown(self, way: Figures) -> bool:
        possible = race_is_possible(connection.vendor, bool(connection.settings_dict["ATOMIC_REQUESTS"]))
        return way["identical"]["duplicates"] > 0 or not possible

    def rows(self, way: Figures) -> list[Figures]:
        return [way[kind] | {"kind": kind} for kind in ("identical", "distinct") if way[kind]]

    def problems(self, way: Figures) -> Iterator[str]:
        for row in self.rows(way):
            told = f"{row['kind']} sign-ups: "
            if row["errors"]:
                yield f"{told}{many(row['failed'], 'failed request')}: {', '.join(row['errors'])}."
            if way["prevents"] and row["duplicates"]:
                yield f"{told}{row['duplicates']} duplicate accounts."
            # A sign-up that was told to come back later (503) is the only excuse for an address without an account.
            if way["prevents"] and row["accounts"] < row["addresses"] - row["statuses"].get("503", 0):
                yield f"{told}{row['accounts']} accounts for {row['addresses']} addresses."
        if way["proof_problem"]:
            yield way["proof_problem"]
        if way["log_in_while_held"] is False:
            yield "a log-in waited for the registration that held the lock."

    def story(self, way: Figures) -> str:
        row = way["identical"]
        made = f"{row['requests']} identical sign-ups made {many(row['accounts'], 'account')}"
        made += f", {row['duplicates']} too many" if row["duplicates"] else ""
        made += f"; {many(row['failed'], 'request')} failed" if row["failed"] else ""
        proof = ", and one was answered while a registration held the lock" if way["log_in_while_held"] else ""
        median = busiest(way)["log_ins"]["p50"]
        return f"{way['title']}: {made}. Log-ins meanwhile took {median:.0f} ms (median){proof}."

    def text(self, result: Figures) -> str:
        if race_is_possible(result["engine"], result["atomic_requests"]):
            return super().text(result)
        return super().text(result) + (
            "\nWith ATOMIC_REQUESTS on SQLite every request holds the database's write lock from its first statement "
            "(BEGIN IMMEDIATE), so the race cannot happen here even without a lock."
        )
