"""What a person on call sees, the admin's pages and the commands, says no secret either, whatever goes wrong."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from django_distlock import advisory_lock, held_locks
from django_distlock.manager.registry import registry
from django_distlock.operations.admin.rows import LockRow, LockRows
from tests.faults.proxy import Proxy
from tests.operations.canary import canary as canary
from tests.operations.test_canary import ENGINES, HOSTILE, SERVERS, alias_for
from tests.support import services
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.operations.canary import Canary

LIST = reverse("admin:django_distlock_heldlock_changelist")
COMMANDS = [
    ["list", "--json"],
    ["list", "--table"],
    ["list", "--using", "canary"],
    ["doctor", "--using", "canary"],
    ["break", "no such lock", "--using", "canary", "--yes"],
    ["run", "canary", "--using", "canary", "--", "true"],
    ["migrate", "--plan", "--using", "canary", "--timeout", "0"],
    ["prune", "--using", "canary"],
]


@pytest.fixture
def boss(databases: None) -> Iterator[Client]:
    user = User.objects.create(username="canary", password="!", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user)
    yield client
    Session.objects.all().delete()
    user.delete()


def commands(canary: Canary, *more: list[str]) -> None:
    for arguments in (*COMMANDS, *more):
        out, err = io.StringIO(), io.StringIO()
        try:
            call_command("distlock", *arguments, stdout=out, stderr=err)
        except SystemExit as error:
            canary.read("exit", error.code)
        except Exception as error:
            canary.read_error(" ".join(arguments), error)
        canary.read(" ".join(arguments), out.getvalue() + err.getvalue())


def pages(canary: Canary, boss: Client, rows: list[LockRow]) -> None:
    for path in (LIST, f"{LIST}?using=canary", f"{LIST}canary_2Fx_2Fy/change/"):
        canary.read("page", boss.get(path).content.decode())
    for row in rows:
        for what in ("change", "break"):
            canary.read("page", boss.get(f"{LIST}{row.pk.replace('/', '_2F')}/{what}/").content.decode())
        answer = boss.post(f"{LIST}break/", {"lock": row.seen, "reason": HOSTILE}, follow=True)
        canary.read("page", answer.content.decode())


@pytest.mark.parametrize("using", ENGINES)
def test_pages_and_commands_say_nothing(
    using: str, name: str, boss: Client, canary: Canary, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is well; the password is wrong; there is no server."""
    monkeypatch.setattr("django_distlock.operations.commands.migrate.SILENCE", 0.0)
    usual = settings.DISTLOCK[using]
    settings.DISTLOCK = {"canary": usual}
    lease = advisory_lock(name + HOSTILE, using="canary", timeout=5).acquire()
    canary.know("token", lease._grant.claim.token or "no token is used here")
    rows = LockRows().of("canary").rows
    assert rows
    pages(canary, boss, [row for row in rows if row.breakable])
    canary.attempt(lease.release)
    commands(canary)
    registry.close()
    for port in (None, free_port()):
        settings.DISTLOCK = {using: usual}
        with alias_for(using, canary.make("wrong password"), port) as entry:
            settings.DISTLOCK = {using: usual, "canary": entry}
            pages(canary, boss, [])
            commands(canary)
            registry.close()


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["postgres", "redis"])
def test_nothing_is_said_of_a_server_that_hangs(
    using: str, name: str, boss: Client, canary: Canary, settings: Any
) -> None:
    server = services.load()[SERVERS.get(using, using)]
    with Proxy(server["host"], server["port"]) as proxy, alias_for(using, server["password"], proxy.port) as entry:
        settings.DISTLOCK = {"canary": entry}
        assert held_locks("canary")[0].error is None
        proxy.blackhole()
        canary.read("page", boss.get(LIST).content.decode())
        proxy.cut()
        registry.close()
