"""The site key, passwords and tokens appear nowhere, whatever goes wrong: errors, logs, lists, pages, commands."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.core.checks import run_checks
from django.db import connections
from django.test import Client, override_settings
from django.urls import reverse

from django_distlock import advisory_lock, break_lock, held_locks
from django_distlock.concurrency.tokens import new_token
from django_distlock.conf import read_alias
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.testing import lose
from tests.faults.proxy import Proxy
from tests.operations.canary import Canary
from tests.operations.canary import canary as canary
from tests.operations.commands.calling import call
from tests.operations.listening import listening
from tests.support import services
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

# Those that are waited for longer when they are away are in the second tier.
ENGINES = [
    *("postgres", "mysql", "leasetable_postgres", "redis"),
    *(pytest.param(using, marks=pytest.mark.tier2) for using in ("redlock", "zookeeper")),
]
SERVERS = {"mysql": "mariadb", "leasetable_postgres": "postgres", "redis": "redis1"}
HOSTILE = "canary\r\nlog line\x1b[2J\u202e"
LIST = reverse("admin:django_distlock_heldlock_changelist")
COMMANDS = [
    "list --json",
    "list --table",
    "doctor --using canary",
    "break no-such-lock --using canary --yes",
    "run canary --using canary --timeout 1 -- true",
    "migrate --plan --using canary --timeout 0",
    "prune --using canary",
]


@pytest.fixture
def boss(databases: None) -> Iterator[Client]:
    user = User.objects.create(username="canary", password="!", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user)
    yield client
    Session.objects.all().delete()
    user.delete()


def everything(canary: Canary, boss: Client, name: str) -> None:
    """What one can do with the alias "canary", whether its server answers or not."""
    lock = advisory_lock(name, using="canary", timeout=1)
    with listening() as heard:
        canary.read("recipe", lock)
        lease = canary.attempt(lock.acquire)
        if not isinstance(lease, Exception):
            canary.read("lease", lease)
            canary.read("listing", held_locks("canary"))
            page = boss.get(LIST).text
            for link in set(re.findall(rf'href="({LIST}[^"/]+/)change/', page)):
                page += boss.get(f"{link}change/").text + boss.get(f"{link}break/").text
            canary.read("page", page)
            canary.attempt(lease.release)

        async def inside() -> None:
            async with lock as lease:
                canary.read("lease", lease)
                lose(lease)

        canary.attempt(lambda: asyncio.run(inside()))
        for info in (info for report in held_locks("canary") for info in report.locks):
            canary.attempt(lambda info=info: break_lock(info, reason=HOSTILE))  # type: ignore[misc]
    canary.read("signals", list(heard))
    canary.read("page", boss.get(LIST).text)
    for command in COMMANDS:
        canary.read(command, canary.attempt(lambda c=command: call(*c.split())))  # type: ignore[misc]
    canary.read("internals", [registry.entry("canary").backend, registry.entry("canary").config])


@contextmanager
def alias_for(using: str, password: str, port: int | None = None) -> Iterator[dict[str, Any]]:
    """The settings of a lock alias like ``using``, with another password or port."""
    config = read_alias(using)
    server = services.load().get(SERVERS.get(using, using), {})
    options = dict(config.options)
    address = f"redis://:{quote(password)}@127.0.0.1"
    if using == "redis":
        options = {"url": f"{address}:{port or server['port']}/0"}
    elif using == "redlock":
        ports = [services.load()[f"redis{number}"]["port"] for number in (1, 2, 3)]
        options = {"nodes": [f"{address}:{port or each}/{(port and n) or 0}" for n, each in enumerate(ports)]}
    elif using == "zookeeper":
        options |= {"auth_data": [("digest", f"me:{password}")], "hosts": f"127.0.0.1:{port or server['port']}"}
        # what is made with these credentials is for nobody else
        options |= {"path": f"/canary-{new_token()}"}
    else:
        original = connections.settings[options["database"]]
        connections.settings["canary"] = {**original, "PASSWORD": password} | ({"PORT": str(port)} if port else {})
        options["database"] = "canary"
    try:
        yield {"BACKEND": config.backend, "OPTIONS": options}
    finally:
        registry.close()
        if "canary" in connections.settings:
            connections["canary"].close()
            del connections["canary"]
            del connections.settings["canary"]


@pytest.mark.parametrize("using", ENGINES)
def test_nothing_is_said_when_all_is_well_with_a_wrong_password_or_no_server(
    using: str, name: str, boss: Client, canary: Canary, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_distlock.operations.commands.migrate.SILENCE", 0.0)  # it does not ask again
    usual = settings.DISTLOCK[using]
    key = settings.DISTLOCK_SITE_KEY
    settings.DISTLOCK, settings.DISTLOCK_SITE_KEY = {"canary": usual}, canary.make("site key")
    site_key.forget()
    lease = advisory_lock(name, using="canary", timeout=5).acquire()
    canary.know("token", lease._grant.claim.token or "no token is used here")
    canary.read("internals", [lease, lease._grant.claim, lease._grant, lease._hold.key, held_locks()])
    lease.release()
    everything(canary, boss, name + HOSTILE)
    registry.close()
    settings.DISTLOCK_SITE_KEY = key
    site_key.forget()
    for port in (None, free_port()):
        with override_settings(DISTLOCK={using: usual}), alias_for(using, canary.make("wrong one"), port) as entry:
            settings.DISTLOCK = {"canary": entry}
            canary.attempt(lambda: run_checks(tags=["distlock"]))
            everything(canary, boss, name)


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["postgres", "redis"])
def test_nothing_is_said_when_the_server_hangs(
    using: str, name: str, boss: Client, canary: Canary, settings: Any
) -> None:
    server = services.load()[SERVERS.get(using, using)]
    with Proxy(server["host"], server["port"]) as proxy, alias_for(using, server["password"], proxy.port) as entry:
        settings.DISTLOCK = {"canary": entry}
        lease = advisory_lock(name, using="canary").acquire()
        proxy.blackhole()
        canary.attempt(lambda: advisory_lock(name + "2", using="canary", timeout=0.2).acquire())
        canary.read("page", boss.get(LIST).text)
        proxy.cut()
        canary.attempt(lease.release)
        canary.read("internals", [lease, registry.entry("canary").backend])


def test_settings_that_are_wrong_are_not_repeated(databases: None, canary: Canary) -> None:
    secret = canary.make("password")
    for engine, options in (
        ("postgres", {"password": secret}),
        ("postgres", f"redis://:{secret}@x"),
        ("redis", {"url": f"x//:{secret}@y:z"}),
        ("redlock", {"nodes": [f"redis//:{secret}@x"]}),
        ("zookeeper", {"hosts": f"x//:{secret}@y:z"}),
        ("zookeeper", {"auth_data": [f"me:{secret}"]}),
    ):
        entry = {"BACKEND": read_alias(engine).backend, "OPTIONS": options}
        with override_settings(DISTLOCK={"default": entry}):
            messages = run_checks(tags=["distlock"])
            assert messages or "hosts" in options
            canary.read("checks", [(m.msg, m.hint) for m in messages])
            canary.attempt(lambda: advisory_lock("x", timeout=0).acquire())
            canary.attempt(held_locks)


def test_the_canary_finds_what_it_looks_for() -> None:
    """A checker that cannot turn red is broken."""

    def fail(secret: str) -> None:
        try:
            raise ValueError(secret)
        except ValueError:
            raise RuntimeError("harmless") from None

    for say in (
        lambda mine, secret: mine.read("page", f"<p>{quote(secret)}</p>"),
        lambda mine, secret: logging.getLogger("django_distlock.x").debug("the key is %s", secret),
        lambda mine, secret: mine.attempt(lambda: fail(secret)),
        lambda mine, secret: mine.read("bytes", secret.encode().hex()),
    ):
        mine = Canary()
        with mine.listening():
            mine.read("page", "harmless")
            secret = mine.make("secret")
            assert not mine.found()
            say(mine, secret)
        assert mine.found()
