"""The files that remember the private servers, and the lock that keeps two commands from starting them at once."""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.paths import ROOT
from tests.support.services.process import ServicesError

if TYPE_CHECKING:
    from collections.abc import Iterator


def state_path() -> Path:
    """What clients read: addresses and passwords."""
    return Path(os.environ.get("DISTLOCK_SERVICES") or ROOT / ".services" / "state.json").absolute()


def processes_path() -> Path:
    """What `down` reads: processes and directories of ours."""
    return state_path().with_suffix(".processes.json")


def read_json(path: Path) -> dict[str, Any]:
    """The file's content; empty if there is no such file."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ServicesError(f"{path} is not JSON ({error}); remove it and run `make services`") from None
    if not isinstance(content, dict):
        raise ServicesError(f"{path} does not hold a JSON object; remove it and run `make services`")
    return content


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Replace the file at once, readable by us alone: it holds passwords."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
    fresh.replace(path)


@contextmanager
def exclusive() -> Iterator[None]:
    """One command at a time changes the servers of this checkout."""
    path = state_path().with_suffix(".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
