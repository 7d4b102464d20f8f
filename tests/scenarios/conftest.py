"""One replay per engine and transaction setting, shared by the tests that look at it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from contextlib import ExitStack
from functools import cache, wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from .databases import demo_database, manage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# As in the demo's settings: that scene goes with the package that it shows.
collect_ignore_glob = [] if find_spec("django_distlock.idempotency") else ["test_orders*"]


class Replayed(Protocol):
    def __call__(self, engine: str, *, atomic: bool) -> tuple[int, dict[str, Any]]: ...


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call the function once for each set of arguments and remember a failure as well.

    Else every test that looks at a replay that hangs would wait for it again.
    """

    @cache
    def outcome(*args: Any, **kwargs: Any) -> tuple[Any, Exception | None]:
        try:
            return function(*args, **kwargs), None
        except Exception as error:
            return None, error

    @wraps(function)
    def remembered(*args: Any, **kwargs: Any) -> Any:
        result, error = outcome(*args, **kwargs)
        if error is not None:
            raise error
        return result

    return remembered


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], dict[str, str]]]:
    """The environment that points to a migrated database on an engine; one for all replays."""
    with ExitStack() as databases:

        @once
        def database(engine: str) -> dict[str, str]:
            return databases.enter_context(demo_database(engine, tmp_path_factory.mktemp(engine)))

        yield database


@pytest.fixture(scope="session")
def replayed(migrated: Callable[[str], dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Replayed:
    """Exit status and figures of `manage.py replay`: 200 identical sign-ups per way against 4 server processes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # shared by all test processes: the first one that asks pays, the others wait for it

    @once
    def run(engine: str, atomic: str) -> tuple[int, str, str]:
        kept = folder / f"replay-{engine}-{atomic}.json"
        with kept.with_suffix(".lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not kept.exists():
                # a connection for each request, as Django has it, or kept for later ones, as many sites do
                kept_for = "60" if atomic == "1" else "0"
                environment = {"DISTLOCK_ATOMIC_REQUESTS": atomic, "DISTLOCK_CONN_MAX_AGE": kept_for}
                environment |= migrated(engine)
                try:
                    done = manage("replay", "--identical=200", "--distinct=0", "--json", environment=environment)
                except subprocess.TimeoutExpired as error:
                    kept.write_text(json.dumps([-1, "", str(error)]))
                else:
                    kept.write_text(json.dumps([done.returncode, done.stdout, done.stderr]))
            status, output, errors = json.loads(kept.read_text())
        return status, output, errors

    def replay(engine: str, *, atomic: bool) -> tuple[int, dict[str, Any]]:
        status, output, errors = run(engine, "1" if atomic else "0")
        # Shown with every test that fails on this replay: it ends with the server's own log.
        print(errors)
        assert output, f"The replay broke off with exit status {status}."
        return status, json.loads(output)

    return replay
