"""``manage.py distlock`` in this process, receivers of signals, and settings that the tests share."""

from __future__ import annotations

import io
import secrets
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from django.core.management import CommandError, call_command, execute_from_command_line
from django.db import connections

from django_distlock import signals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model

BUSY, UNAVAILABLE, WRONG = 75, 69, 2  # exit statuses
MEMORY = {"BACKEND": "django_distlock.backends.memory.MemoryBackend"}
CANARY = "canary-of-a-password"
REDIS = "django_distlock.backends.redis.RedisBackend"
DOWN = {"BACKEND": REDIS, "OPTIONS": {"url": f"redis://:{CANARY}@127.0.0.1:1/0"}}
SIGNALS = {
    kind: getattr(signals, f"lock_{kind}") for kind in ("acquired", "released", "timed_out", "failed", "lost", "broken")
}


class Terminal(io.StringIO):
    """Where a person reads, and answers when asked."""

    def isatty(self) -> bool:
        return True


def call(*arguments: str, out: io.StringIO | None = None) -> tuple[int, str, str]:
    """The exit status, and what was said on stdout and on stderr."""
    out, err = out or io.StringIO(), io.StringIO()
    status = 0
    try:
        call_command("distlock", *arguments, stdout=out, stderr=err, no_color=True)
    except SystemExit as error:
        status = int(error.code or 0)
    except CommandError as error:
        status = error.returncode
        err.write(str(error))
    return status, out.getvalue(), err.getvalue()


def manage(*arguments: str) -> int:
    """As a shell calls it; the exit status."""
    try:
        execute_from_command_line(["manage.py", "distlock", *arguments])
    except SystemExit as error:
        return int(error.code or 0)
    return 0


class Heard(list[tuple[str, dict[str, Any]]]):
    """What was sent, in order."""

    def facts(self, kind: str) -> dict[str, Any]:
        """Of the only one of its kind."""
        (found,) = (facts for heard, facts in self if heard == kind)
        return found


@contextmanager
def listening(name: str | None = None) -> Iterator[Heard]:
    """Hear of one lock, or of all."""
    heard = Heard()
    with ExitStack() as stack:
        for kind, signal in SIGNALS.items():

            def receive(kind: str = kind, **facts: Any) -> None:
                if name in (None, facts["name"]):
                    heard.append((kind, facts))

            signal.connect(receive, weak=False)
            stack.callback(signal.disconnect, receive)
        yield heard


@contextmanager
def poor_account(alias: str) -> Iterator[str]:
    """A database alias whose account sees little."""
    from django_distlock.manager.registry import registry
    from tests.faults.conftest import database_alias
    from tests.faults.server import ask

    user = f"poor_{secrets.token_hex(4)}"
    if alias == "mariadb":
        account = f"USER {user}@'127.0.0.1'"
        ask(alias, f"CREATE {account} IDENTIFIED BY '{CANARY}'")
        ask(alias, f"GRANT ALL ON {connections[alias].settings_dict['NAME']}.* TO {account[5:]}")
    else:
        account = f"ROLE {user}"
        ask(alias, f"CREATE {account} LOGIN PASSWORD '{CANARY}'")
    try:
        with database_alias("poor", alias, USER=user, PASSWORD=CANARY) as poor:
            yield poor
            registry.reset()
    finally:
        ask(alias, f"DROP {account}")


@contextmanager
def without_table(using: str, model: type[Model]) -> Iterator[None]:
    """On the database of a lock alias, or a database alias: `migrate` has not run yet."""
    from tests.faults.server import ask

    table = model._meta.db_table
    ask(using, f"ALTER TABLE {table} RENAME TO {table}_moved")
    try:
        yield
    finally:
        ask(using, f"ALTER TABLE {table}_moved RENAME TO {table}")
