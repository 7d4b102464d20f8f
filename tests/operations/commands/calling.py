"""``manage.py distlock`` in this process."""

from __future__ import annotations

import io

from django.core.management import CommandError, call_command, execute_from_command_line

BUSY, UNAVAILABLE, WRONG = 75, 69, 2  # exit statuses
MEMORY = {"BACKEND": "django_distlock.backends.memory.MemoryBackend"}
CANARY = "canary-of-a-password"
REDIS = "django_distlock.backends.redis.RedisBackend"
DOWN = {"BACKEND": REDIS, "OPTIONS": {"url": f"redis://:{CANARY}@127.0.0.1:1/0"}}


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
