"""The site key, passwords and tokens appear nowhere, whatever goes wrong."""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from django.core.checks import run_checks
from django.db import connections
from django.test import override_settings

from django_distlock import Leader, advisory_lock, break_lock, held_locks, lock_all, semaphore
from django_distlock.concurrency.tokens import new_token
from django_distlock.conf import read_alias
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.testing import lose
from tests.faults.proxy import Proxy
from tests.operations.canary import Canary
from tests.operations.canary import canary as canary
from tests.operations.listening import listening
from tests.support import services
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINES = ("postgres", "mysql", "leasetable_postgres", "leasetable_mariadb", "redis", "redlock", "zookeeper")
SERVERS = {"mysql": "mariadb", "leasetable_mariadb": "mariadb", "leasetable_postgres": "postgres", "redis": "redis1"}
HOSTILE = "canary\r\nlog line\x1b[2J\u202e"


def everything(canary: Canary, using: str, name: str) -> None:
    """What one can do with an alias, whether its server answers or not."""
    options: dict[str, Any] = {"using": using, "timeout": 0.2}
    with listening() as heard:
        for recipe in (
            advisory_lock(name, **options),
            semaphore(name + "s", 2, **options),
            lock_all([name], **options),
        ):
            canary.read("recipe", recipe)
            lease = canary.attempt(recipe.acquire)
            if not isinstance(lease, Exception):
                canary.read("listing", held_locks(using))
                canary.attempt(lease.ensure_held)
                canary.attempt(lease.release)
                canary.read("lease", lease)

        async def inside() -> None:
            async with advisory_lock(name, **options) as lease:
                canary.read("lease", lease)
                lose(lease)

        canary.attempt(lambda: asyncio.run(inside()))
        canary.attempt(lambda: held_locks(using))
        for info in (info for report in held_locks(using) for info in report.locks):
            canary.attempt(lambda info=info: break_lock(info, reason=HOSTILE))  # type: ignore[misc]
    canary.read("signals", list(heard))
    entry = registry.entry(using)
    canary.read("internals", [entry.backend, entry.config, entry.key(name), Leader(name, using=using)])


@contextmanager
def alias_for(using: str, password: str, port: int | None = None) -> Iterator[dict[str, Any]]:
    """The settings of a lock alias like ``using``, with another password or port."""
    config = read_alias(using)
    server = services.load().get(SERVERS.get(using, using), {})
    options = dict(config.options)
    address = f"redis://:{quote(password)}@127.0.0.1:{port or server.get('port')}/0"
    if using == "redis":
        options = {"url": address}
    elif using == "redlock":
        nodes = [services.load()[f"redis{number}"]["port"] for number in (1, 2, 3)]
        options = {
            "nodes": [
                f"redis://:{quote(password)}@127.0.0.1:{port or node}/{(port and n) or 0}"
                for n, node in enumerate(nodes)
            ]
        }
    elif using == "zookeeper":
        options |= {"auth_data": [("digest", f"me:{password}")], "hosts": f"127.0.0.1:{port or server['port']}"}
        # what is made with these credentials is for nobody else
        options |= {"session_timeout": 1.0, "path": f"/canary-{new_token()}"}
    else:
        original = connections.settings[options["database"]]
        changed = {**original, "PASSWORD": password} | ({"PORT": str(port)} if port else {})
        connections.settings["canary"] = changed
        options["database"] = "canary"
    try:
        yield {"BACKEND": config.backend, "OPTIONS": options}
    finally:
        if "canary" in connections.settings:
            connections["canary"].close()
            del connections["canary"]
            del connections.settings["canary"]


@pytest.mark.parametrize("using", ENGINES)
def test_nothing_is_said_with_a_wrong_password_or_no_server(
    using: str, name: str, databases: None, canary: Canary, settings: Any
) -> None:
    for port in (None, free_port()):
        with alias_for(using, canary.make("wrong password"), port) as entry:
            settings.DISTLOCK = {**settings.DISTLOCK, "canary": entry}
            canary.attempt(lambda: run_checks(tags=["distlock"]))
            everything(canary, "canary", name)
            registry.close()
    assert len(canary.texts) > 20


@pytest.mark.tier2
@pytest.mark.parametrize("using", ["postgres", "mysql", "redis", "zookeeper"])
def test_nothing_is_said_when_the_server_hangs(
    using: str, name: str, databases: None, canary: Canary, settings: Any
) -> None:
    server = services.load()[SERVERS.get(using, using)]
    with Proxy(server["host"], server["port"]) as proxy, alias_for(using, server["password"], proxy.port) as entry:
        settings.DISTLOCK = {**settings.DISTLOCK, "canary": entry}
        lock = advisory_lock(name, using="canary", timeout=0.2)
        lease = lock.acquire()
        proxy.blackhole()
        canary.attempt(lambda: advisory_lock(name + "2", using="canary", timeout=0.2).acquire())
        proxy.cut()
        canary.attempt(lease.release)
        canary.read("internals", [lease, registry.entry("canary").backend])
        registry.close()


def test_nothing_is_said_when_all_is_well(using: str, name: str, canary: Canary, settings: Any) -> None:
    settings.DISTLOCK_SITE_KEY = canary.make("site key")
    everything(canary, using, name + HOSTILE)
    lease = advisory_lock(name, using=using).acquire()
    canary.know("token", lease._grant.claim.token or "no token is used here")
    canary.read("internals", [lease._grant.claim, lease._grant, lease._hold.key, held_locks(using)])
    lease.release()
    settings.DISTLOCK_SITE_KEY = "a site key for the next test, which has the usual one"
    site_key.forget()


@pytest.mark.parametrize("wrong", ["E", "OPTIONS", "url", "nodes", "hosts", "auth_data"])
def test_settings_that_are_wrong_are_not_repeated(wrong: str, databases: None, canary: Canary) -> None:
    secret = canary.make("password")
    engine = {"url": "redis", "nodes": "redlock", "hosts": "zookeeper", "auth_data": "zookeeper"}
    options: Any = {
        wrong: {"nodes": [f"redis//:{secret}@x"], "auth_data": [f"me:{secret}"]}.get(wrong, f"x//:{secret}@y:z")
    }
    if wrong in ("E", "OPTIONS"):
        options = {"password": secret} if wrong == "E" else f"redis://:{secret}@x"
    backend = read_alias(engine.get(wrong, "postgres")).backend
    with override_settings(DISTLOCK={"default": {"BACKEND": backend, "OPTIONS": options}}):
        messages = run_checks(tags=["distlock"])
        assert messages or wrong == "hosts"
        canary.read("checks", [(m.msg, m.hint) for m in messages])
        canary.attempt(lambda: advisory_lock("x", timeout=0.1).acquire())
        canary.attempt(held_locks)


def test_the_canary_finds_what_it_looks_for() -> None:
    """A checker that cannot turn red is broken."""
    for say in (
        lambda mine, secret: mine.read("page", f"<p>{quote(secret)}</p>"),
        lambda mine, secret: logging.getLogger("django_distlock.x").debug("the key is %s", secret),
        lambda mine, secret: mine.attempt(lambda: fail(secret)),
        lambda mine, secret: mine.read("bytes", secret.encode().hex()),
    ):
        with Canary() as mine:
            say(mine, mine.make("secret"))
        assert mine.found()
    with ExitStack() as stack:
        mine = stack.enter_context(Canary())
        mine.make("secret")
        mine.read("page", "harmless")
    assert not mine.found()


def fail(secret: str) -> None:
    try:
        raise ValueError(secret)
    except ValueError:
        raise RuntimeError("harmless") from None
