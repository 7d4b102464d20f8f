"""The registration race: one address many times at once, and many addresses."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.contrib.auth.hashers import make_password
from django.db import connection
from django.db.models import Count

from django_distlock import advisory_lock
from testproject.replay.crowd import CLIENTS, fire, milliseconds, open_form, summary
from testproject.replay.scene import Column, Figures, Option, Scene, Stage, Way
from testproject.replay.server import Server

from .models import Account, Door
from .views import WAYS, none

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


# Reserved for documentation (RFC 2606): nobody's address, and easy to clear away.
DOMAIN = "replay.example"
PASSWORD = secrets.token_urlsafe(16)


class Registration(Scene):
    name = "registration"
    help = "Send sign-ups to a real server with 4 processes, the same one many times at once, and different ones."
    ways = WAYS
    options = (
        Option("identical", 200, "sign-ups with one address per way"),
        Option("distinct", 60, "sign-ups with as many addresses per way"),
    )
    columns = (
        Column("Sign-ups", "requests"),
        Column("Addresses", "addresses"),
        Column("Accounts", "accounts"),
        Column("Duplicates", "duplicates", alarm=True),
        Column("Answers", "answers"),
        Column("Failed", "wrong", alarm=True),
        Column("Sign-up ms, median", "sign_up", pattern="{:.0f}"),
        Column("Log-in ms, median", "log_in", pattern="{:.0f}"),
        Column("99th percentile", "log_in_p99", pattern="{:.0f}"),
        Column("Per second", "per_second", pattern="{:.0f}"),
    )
    fault = ("duplicates",)
    plots = (
        ("accounts", "Accounts made from {requests} sign-ups with one address"),
        ("log_in", "Milliseconds to log in meanwhile, median"),
    )

    @contextmanager
    def stage(self, options: Mapping[str, Any]) -> Iterator[Stage]:
        Account.objects.filter(email__endswith=f"@{DOMAIN}").delete()
        Door.objects.get_or_create(pk=Door.REGISTRATION)
        with Server() as server:
            race = Race(server.port)
            # Every server process loads what it loads at its first request: the way that comes first must not pay.
            race.burst(none, addresses=CLIENTS)
            facts = {
                "atomic_requests": bool(connection.settings_dict["ATOMIC_REQUESTS"]),
                "server_processes": server.workers,
                "clients": CLIENTS,
            }

            def act(way: Way) -> list[Figures]:
                identical = race.burst(way, times=options["identical"])
                identical["log_in_while_held"] = race.log_in_while_held(way) if way.lock else None
                return [identical, *([race.burst(way, addresses=options["distinct"])] if options["distinct"] else [])]

            yield Stage(act, facts)

    def more_problems(self, row: Figures, prevents: bool) -> Iterator[str]:
        # A sign-up that was told to come back later (503) is the only excuse for an address without an account.
        if prevents and row["accounts"] < row["addresses"] - row["busy"]:
            yield f"{row['accounts']} accounts for {row['addresses']} addresses."
        if row.get("log_in_while_held") is False:
            yield "a registration did not wait for the lock, or a log-in did."

    def told(self, way: Figures) -> str:
        row = way["rows"][0]
        made = f"{row['requests']} identical sign-ups made {row['accounts']} account"
        made += f"s, {row['duplicates']} too many" if row["duplicates"] else ""
        proof = ", and one was answered while a registration waited for the lock" if row["log_in_while_held"] else ""
        median = way["rows"][-1]["log_in"]
        return f"{way['title']}: {made}. Log-ins meanwhile took {median:.0f} ms (median){proof}."


def fresh_address() -> str:
    return f"scanner-{secrets.token_hex(8)}@{DOMAIN}"


class Race:
    """The clients of a running server, and the account that logs in meanwhile."""

    def __init__(self, port: int) -> None:
        self.port, email = port, fresh_address()
        Account.objects.create(email=email, password=make_password(PASSWORD))
        self.log_in = open_form(port, "/login/")(email=email, password=PASSWORD)

    def burst(self, way: Way, *, addresses: int = 1, times: int = 1) -> Figures:
        """Send so many addresses so many times, all at once."""
        emails = [fresh_address() for _ in range(addresses)]
        sign_ups, log_ins = fire(self.sign_ups(way, emails * times), self.log_in)
        made = Account.objects.filter(email__in=emails).values("email").annotate(made=Count("pk")).order_by()
        accounts = list(made.values_list("made", flat=True))
        found = summary(sign_ups, [answer for answer in sign_ups if answer.status in (201, 409, 503)])
        return found | {
            "addresses": addresses,
            "accounts": sum(accounts),
            "duplicates": sum(accounts) - len(accounts),  # accounts beyond the first of an address
            "busy": sum(answer.status == 503 for answer in sign_ups),  # told to come back later
            "errors": [*found["errors"], *(f"a log-in: {each.fault}" for each in log_ins if each.status != 200)],
            "processes": len({answer.headers.get("Process") for answer in sign_ups}),  # of the server, that answered
            "per_second": len(sign_ups) / found["seconds"],
            "sign_up": milliseconds(sign_ups),
            "log_in": milliseconds(log_ins),
            "log_in_p99": milliseconds(log_ins, 0.99),
        }

    def sign_ups(self, way: Way, emails: Sequence[str]) -> list[Any]:
        filled = open_form(self.port, f"/register/{way.slug}/")
        return [filled(email=email, password=PASSWORD) for email in emails]

    def log_in_while_held(self, way: Way) -> bool:
        """Whether a log-in is answered while somebody holds the lock, and a sign-up only afterwards."""
        email = fresh_address()
        (sign_up,) = self.sign_ups(way, [email])
        with ThreadPoolExecutor(1) as pool:
            with advisory_lock(way.lock.format(key=email)):
                waiting = pool.submit(sign_up.send)
                answered = [self.log_in.send().status for _ in range(5)]
                held = not waiting.done()
            return held and answered == [200] * 5 and waiting.result().status == 201
