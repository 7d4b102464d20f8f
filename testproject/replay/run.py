"""One replay: every way in turn against one real server, on the database of this process."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.db import connection
from django.db.models import Count

from testproject.registration.models import Account
from testproject.registration.ways import NONE, WAYS, Way

from .crowd import Crowd, Form, Vigil
from .held import ProofError, log_in_while_held
from .records import Phase, Replay, WayResult
from .server import Server
from .verdict import problems, race_is_possible

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Reserved for documentation (RFC 2606): nobody's address, and easy to clear away.
DOMAIN = "replay.example"
PASSWORD = secrets.token_urlsafe(16)
LOG_IN_PATH = "/login/"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`identical` and `distinct` are numbers of sign-ups; `rounds` bounds the tries to make the race show itself."""

    ways: Sequence[Way] = WAYS
    identical: int = 200
    distinct: int = 60
    rounds: int = 5


class Stage:
    """A running server, its clients, and the account that logs in meanwhile."""

    def __init__(self, server: Server, crowd: Crowd) -> None:
        self.server, self.crowd = server, crowd
        self.run = secrets.token_hex(4)
        self.bursts = 0
        self.log_in = credentials(f"regular-{self.run}@{DOMAIN}")
        Account.objects.create(email=self.log_in["email"], password=make_password(PASSWORD))

    def warm_up(self) -> None:
        """Let every server process load what it loads at its first request: the way that comes first must not pay."""
        self.burst(NONE, distinct=self.crowd.processes * self.crowd.threads)

    def fresh_address(self, number: int = 0) -> str:
        return f"scanner-{self.run}-{self.bursts}-{number}@{DOMAIN}"

    def burst(self, way: Way, *, identical: int = 0, distinct: int = 0) -> Phase:
        """Send one address `identical` times, or `distinct` addresses once each."""
        self.bursts += 1
        addresses = [self.fresh_address(number) for number in range(distinct or 1)]
        forms = [credentials(address) for address in addresses] * (identical or 1)
        vigil = Vigil(self.server.port, LOG_IN_PATH, self.log_in)
        sign_ups, log_ins = self.crowd.fire(self.server.port, path_of(way), forms, vigil)
        per_address = Account.objects.filter(email__in=addresses).values("email").annotate(made=Count("pk")).order_by()
        counts = per_address.values_list("made", flat=True)
        return Phase.of(sign_ups, log_ins, counts, addresses=len(addresses))

    def identical_until_shown(self, way: Way, plan: Plan) -> tuple[int, Phase]:
        """One round for a way that promises one account; else rounds until duplicates appear, at most plan.rounds."""
        expected = not way.prevents and race_is_possible(connection.vendor, atomic_requests())
        rounds, phase = 1, self.burst(way, identical=plan.identical)
        while expected and not phase.duplicates and rounds < plan.rounds:
            rounds, phase = rounds + 1, self.burst(way, identical=plan.identical)
        return rounds, phase

    def log_in_proof(self, way: Way) -> tuple[bool | None, str]:
        """Whether a log-in is answered while a registration holds the way's lock, and why that could not be seen."""
        if way.lock_name is None:
            return None, ""
        self.bursts += 1
        sign_up = credentials(self.fresh_address())
        name = way.lock_name.format(key=sign_up["email"])
        try:
            return log_in_while_held(self.server.port, path_of(way), name, sign_up, (LOG_IN_PATH, self.log_in)), ""
        except ProofError as error:
            return None, str(error)


def replay(plan: Plan, tell: Callable[[str], Any] = lambda line: None) -> tuple[Replay, str]:
    """Run the plan; the result, and the end of the server's log when a request failed."""
    clear_replayed_accounts()
    with Crowd() as crowd, Server(threads=crowd.processes * crowd.threads + 8) as server:
        stage = Stage(server, crowd)
        stage.warm_up()
        results = []
        for way in plan.ways:
            tell(f"{way.title} ...")
            results.append(way_result(stage, way, plan))
        measured = Replay(
            engine=connection.vendor,
            engine_name=connection.display_name,
            engine_version=".".join(str(part) for part in connection.get_database_version()),
            atomic_requests=atomic_requests(),
            server_processes=server.workers,
            client_processes=crowd.processes,
            client_threads=crowd.threads,
            hash_iterations=settings.PASSWORD_HASH_ITERATIONS,
            ways=results,
        )
        found = list(problems(measured))
        return replace(measured, problems=found), server.log_tail() if found else ""


def way_result(stage: Stage, way: Way, plan: Plan) -> WayResult:
    rounds, identical = stage.identical_until_shown(way, plan)
    distinct = stage.burst(way, distinct=plan.distinct) if plan.distinct else None
    answered, proof_problem = stage.log_in_proof(way)
    return WayResult(
        slug=way.slug,
        title=way.title,
        prevents=way.prevents,
        rounds=rounds,
        identical=identical,
        distinct=distinct,
        log_in_while_held=answered,
        proof_problem=proof_problem,
    )


def clear_replayed_accounts() -> None:
    Account.objects.filter(email__endswith=f"@{DOMAIN}").delete()


def credentials(email: str) -> Form:
    return {"email": email, "password": PASSWORD}


def path_of(way: Way) -> str:
    return f"/register/{way.slug}/"


def atomic_requests() -> bool:
    return bool(connection.settings_dict["ATOMIC_REQUESTS"])
