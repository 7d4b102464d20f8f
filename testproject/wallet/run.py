"""One replay of double spending: every way in turn against one real server, on the database of this process."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import connection
from django.db.models import Sum

from testproject.replay.crowd import Crowd, Form, Vigil
from testproject.replay.records import Answer, Times, span
from testproject.replay.server import Server

from .models import Account
from .records import Pairs, Replay, Transfers, WayResult, problems
from .ways import WAYS, Way

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Nobody's account: what the replay makes, it clears away.
OWNER = "replay"
START, FIRST, SECOND = 1000, 600, 700
PAID, REFUSED = 200, 409


@dataclass(frozen=True, kw_only=True)
class Plan:
    """`pairs` of withdrawals, `transfers` between `accounts`; `rounds` bounds the tries to show the race."""

    ways: Sequence[Way] = WAYS
    pairs: int = 200
    transfers: int = 2000
    accounts: int = 10
    rounds: int = 5


class Stage:
    """A running server and its clients."""

    def __init__(self, server: Server, crowd: Crowd) -> None:
        self.server, self.crowd = server, crowd

    def fire(self, path: str, forms: list[Form], looked_at: int) -> tuple[dict[int, Answer], list[Answer]]:
        """Number of a form -> its answer, and the answers to whoever looks up a balance meanwhile."""
        numbers = {id(form): number for number, form in enumerate(forms)}
        sent = [form for queues in self.crowd.queues(forms) for queue in queues for form in queue]
        vigil = Vigil(self.server.port, "/wallet/balance/", {"account": str(looked_at)})
        answers, looks = self.crowd.fire(self.server.port, path, forms, vigil)
        return {numbers[id(form)]: answer for form, answer in zip(sent, answers, strict=True)}, looks

    def pairs(self, way: Way, count: int) -> tuple[Pairs, list[Answer], list[Answer]]:
        pks = fresh_accounts(count)
        forms = [{"account": str(pk), "amount": str(amount)} for pk in pks for amount in (FIRST, SECOND)]
        answers, looks = self.fire(f"/wallet/withdraw/{way.slug}/", forms, pks[0])
        paid = [[answers[2 * n + half].status == PAID for half in (0, 1)] for n in range(count)]
        balances = dict(Account.objects.filter(pk__in=pks).values_list("pk", "balance"))
        fits = [
            balances[pk] == START - FIRST * first - SECOND * second
            for pk, (first, second) in zip(pks, paid, strict=True)
        ]
        found = Pairs(
            count=count, both=paid.count([True, True]), neither=paid.count([False, False]), wrong=fits.count(False)
        )
        return found, list(answers.values()), looks

    def transfers(self, way: Way, count: int, accounts: int) -> tuple[Transfers, list[Answer], list[Answer]]:
        pks = fresh_accounts(accounts)
        answers, looks = self.fire(f"/wallet/transfer/{way.slug}/", [any_transfer(pks) for _ in range(count)], pks[0])
        total = Account.objects.filter(pk__in=pks).aggregate(total=Sum("balance"))["total"]
        all_answers = list(answers.values())
        found = Transfers(
            count=count,
            done=sum(answer.status == PAID for answer in all_answers),
            drift=total - START * accounts,
            per_second=round(count / span(all_answers), 1),
            times=Times.of(all_answers),
        )
        return found, all_answers, looks


def any_transfer(pks: Sequence[int]) -> Form:
    source, target = random.sample(pks, 2)
    return {"account": str(source), "target": str(target), "amount": str(random.randint(1, 500))}


def fresh_accounts(count: int) -> list[int]:
    Account.objects.filter(owner=OWNER).delete()
    Account.objects.bulk_create([Account(owner=OWNER, balance=START) for _ in range(count)])
    return list(Account.objects.filter(owner=OWNER).values_list("pk", flat=True))


def replay(plan: Plan, tell: Callable[[str], Any] = lambda line: None) -> tuple[Replay, str]:
    """Run the plan; the result, and the end of the server's log if it did not go as promised."""
    with Crowd(processes=4, threads=4) as crowd, Server(threads=crowd.processes * crowd.threads + 8) as server:
        stage = Stage(server, crowd)
        stage.pairs(plan.ways[0], crowd.processes)  # every server process loads what it loads at its first request
        results = []
        for way in plan.ways:
            tell(f"{way.title} ...")
            results.append(way_result(stage, way, plan))
        found = list(problems(results))
        measured = Replay(
            engine=connection.vendor,
            engine_name=connection.display_name,
            engine_version=".".join(str(part) for part in connection.get_database_version()),
            server_processes=server.workers,
            client_processes=crowd.processes,
            client_threads=crowd.threads,
            ways=results,
            problems=found,
        )
        Account.objects.filter(owner=OWNER).delete()
        return measured, server.log_tail() if found else ""


def way_result(stage: Stage, way: Way, plan: Plan) -> WayResult:
    rounds = 1
    pairs, answers, looks = stage.pairs(way, plan.pairs)
    while not way.prevents and not pairs.both and rounds < plan.rounds:
        rounds += 1
        pairs, answers, looks = stage.pairs(way, plan.pairs)
    transfers, more_answers, more_looks = stage.transfers(way, plan.transfers, plan.accounts)
    failed = [answer for answer in answers + more_answers if answer.status not in (PAID, REFUSED)]
    failed += [answer for answer in looks + more_looks if answer.status != PAID]
    return WayResult(
        slug=way.slug,
        title=way.title,
        prevents=way.prevents,
        rounds=rounds,
        pairs=pairs,
        transfers=transfers,
        look_ups=Times.of(more_looks),
        failed=len(failed),
        errors=sorted({f"{answer.status} {answer.error}".strip() for answer in failed}),
    )
