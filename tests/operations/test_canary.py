"""The site key, passwords and tokens appear nowhere, whatever goes wrong: errors, logs, lists, pages, commands."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
import secrets
import traceback
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from django.core.checks import run_checks
from django.db import connections
from django.test import Client, override_settings

from django_distlock import advisory_lock, break_lock, held_locks
from django_distlock.conf import read_alias
from django_distlock.manager.registry import registry
from django_distlock.manager.site_key import site_key
from django_distlock.records import new_token
from django_distlock.testing import lose
from tests.faults.conftest import database_alias
from tests.operations.admin.pages import LIST, log_in, remove_people
from tests.operations.world import call, listening
from tests.support import services
from tests.support.services.process import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Those that are waited for longer when they are away are in the second tier.
ENGINES = [
    *("postgres", "mysql", "leasetable_postgres", "redis"),
    *(pytest.param(using, marks=pytest.mark.tier2) for using in ("redlock", "zookeeper")),
]
HOSTILE = "canary\r\nlog line\x1b[2J\u202e"
COMMANDS = """
list --json
list --table
doctor --using canary
break no-such-lock --using canary --yes
run canary --using canary --timeout 1 -- true
migrate --plan --using canary --timeout 0
prune --using canary
""".strip().splitlines()


class Canary:
    """Knows secrets, and finds where they were said: in what it was given to read, in logs and in warnings."""

    def __init__(self, logs: pytest.LogCaptureFixture, warnings: pytest.WarningsRecorder) -> None:
        self.logs, self.warnings = logs, warnings
        self.secrets: dict[str, str] = {}  # secret -> what it is
        self.texts: list[tuple[str, str]] = []
        for name in ("", "django_distlock", "kazoo", "django"):
            logs.set_level(logging.DEBUG, name)

    def know(self, what: str, secret: str = "") -> str:
        """A secret; a new one if none is given."""
        secret = secret or "canary-" + secrets.token_hex(16)
        assert len(secret) >= 16, "too short to be told from other text"
        self.secrets[secret] = what
        return secret

    def read(self, where: str, *values: object) -> None:
        self.texts += [(where, form(value)) for value in values for form in (str, repr)]

    def attempt(self, action: Callable[[], Any]) -> Any:
        """Do it, and read what it gives or raises, with everything behind that."""
        try:
            result: Any = action()
            self.read("answer", result)
        except Exception as error:
            result, behind = error, [error]
            for each in behind:
                self.read("error", "".join(traceback.format_exception(each, chain=False)), each)
                more = (each.__cause__, each.__context__)
                behind += [other for other in more if other is not None and other not in behind]
        return result

    def found(self) -> list[str]:
        """Where secrets were said, in whatever form."""
        self.read("warning", *(warning.message for warning in self.warnings))
        for record in self.logs.get_records("call"):
            text = self.logs.handler.format(record)
            assert "\n" not in record.getMessage() or not record.name.startswith("django_distlock"), text
            self.read(f"log {record.name}", text)
        found = []
        for secret, what in self.secrets.items():
            coded = base64.b64encode(secret.encode()).decode().rstrip("=")
            forms = (secret, quote(secret, safe=""), secret.encode().hex(), coded)
            found += [f"{what} in {where}: {text}" for where, text in self.texts if any(form in text for form in forms)]
        return found


@pytest.fixture
def canary(
    databases: None, settings: Any, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> Iterator[Canary]:
    """The site key and the passwords of all databases and servers must not be said while the test runs."""
    mine = Canary(caplog, recwarn)
    mine.know("site key", settings.DISTLOCK_SITE_KEY)
    passwords = [connections.settings[alias].get("PASSWORD") for alias in connections]
    for password in [*passwords, *(server["password"] for server in services.load().values())]:
        if password:
            mine.know("password", password)
    yield mine
    assert mine.texts, "nothing was read"
    assert not (found := mine.found()), "\n".join(found)


@pytest.fixture
def boss(databases: None) -> Iterator[Client]:
    yield log_in(Client(), "boss")
    remove_people()


def everything(canary: Canary, boss: Client, name: str) -> None:
    """What one can do with the alias "canary", whether its server answers or not."""
    lock = advisory_lock(name, using="canary", timeout=1)
    with listening() as heard:
        lease = canary.attempt(lock.acquire)
        canary.read("lease", lock, lease)
        if not isinstance(lease, Exception):
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
    canary.read("internals", registry.entry("canary").backend, registry.entry("canary").config)


@contextmanager
def alias_for(using: str, password: str, port: int | None) -> Iterator[dict[str, Any]]:
    """The settings of a lock alias like ``using``, with another password or port."""
    config = read_alias(using)
    options, address = dict(config.options), f"redis://:{quote(password)}@127.0.0.1"
    with ExitStack() as stack:
        if using in ("redis", "redlock"):
            ports = [services.load()[f"redis{number}"]["port"] for number in (1, 2, 3)]
            urls = [f"{address}:{port or each}/{(port and n) or 0}" for n, each in enumerate(ports)]
            options = {"url": urls[0]} if using == "redis" else {"nodes": urls}
        elif using == "zookeeper":
            hosts = f"127.0.0.1:{port or services.load()[using]['port']}"
            # what is made with these credentials is for nobody else
            options |= {"auth_data": [("digest", f"me:{password}")], "hosts": hosts, "path": f"/canary-{new_token()}"}
        else:
            other = {"PASSWORD": password} | ({"PORT": str(port)} if port else {})
            options["database"] = stack.enter_context(database_alias("canary", options["database"], **other))
        stack.callback(registry.close)
        yield {"BACKEND": config.backend, "OPTIONS": options}


@pytest.mark.parametrize("using", ENGINES)
def test_nothing_is_said_when_all_is_well_with_a_wrong_password_or_no_server(
    using: str, name: str, boss: Client, canary: Canary, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_distlock.operations.commands.migrate.SILENCE", 0.0)  # it does not ask again
    usual, key = settings.DISTLOCK[using], settings.DISTLOCK_SITE_KEY
    settings.DISTLOCK, settings.DISTLOCK_SITE_KEY = {"canary": usual}, canary.know("site key")
    site_key.forget()
    with advisory_lock(name, using="canary", timeout=5) as lease:
        canary.know("token", lease._grant.claim.token or "no token is used here")
        canary.read("internals", site_key, lease, lease._grant.claim, lease._grant, lease._hold.key, held_locks())
    everything(canary, boss, name + HOSTILE)
    registry.close()
    settings.DISTLOCK_SITE_KEY = key
    site_key.forget()
    for port in (None, free_port()):
        with override_settings(DISTLOCK={using: usual}), alias_for(using, canary.know("wrong one"), port) as entry:
            settings.DISTLOCK = {"canary": entry}
            canary.attempt(lambda: run_checks(tags=["distlock"]))
            everything(canary, boss, name)


def test_settings_that_are_wrong_are_not_repeated(canary: Canary) -> None:
    secret = canary.know("password")
    for engine, options in (
        ("postgres", {"password": secret}),
        ("postgres", f"redis://:{secret}@x"),
        ("redis", {"url": f"x//:{secret}@y:z"}),
        ("redlock", {"nodes": [f"redis//:{secret}@x"]}),
        ("zookeeper", {"hosts": f"x//:{secret}@y:z"}),
        ("zookeeper", {"auth_data": [f"me:{secret}"]}),
    ):
        with override_settings(DISTLOCK={"default": {"BACKEND": read_alias(engine).backend, "OPTIONS": options}}):
            messages = run_checks(tags=["distlock"])
            assert messages or "hosts" in options
            canary.read("checks", *((message.msg, message.hint) for message in messages))
            canary.attempt(lambda: advisory_lock("x", timeout=0).acquire())
            canary.attempt(held_locks)
