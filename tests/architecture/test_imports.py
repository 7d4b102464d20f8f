"""Who may import whom. The pure ground floor knows neither Django nor the rest; an engine knows the ground floor, the
session machinery and its own driver; nothing above an engine names one.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import django_distlock

PACKAGE = Path(__file__).resolve().parents[2] / "django_distlock"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts)

PURE = {"exceptions", "names", "records", "waiting", "parking", "validation", "tokens", "garbage", "oneline"}
PURE |= {"asker", "clock", "lockquery"}
# The session machinery: shared by the engines whose locks belong to a session.
SESSIONS = {"session", "sessions", "sessionacquire", "sessionlocks", "sockets", "threads", "base", "remains"}
# How servers are reached that may hang.
SESSIONS |= {"direct", "stragglers"}
# What several engines write down, and how.
SESSIONS |= {"notes", "texts", "poolers"}
# What is asked of each server before its locks are believed.
SESSIONS |= {"exclusion"}
ENGINES = {"memory", "leasetable", "postgres", "mysql", "redis", "redlock", "zookeeper"}
# The one sideways edge: Redlock speaks to each of its nodes as the Redis engine does.
SIDEWAYS = {"redlock": {"redis"}}
DRIVERS = {"psycopg", "psycopg_pool", "MySQLdb", "redis", "kazoo", "puresasl", "sqlite3"}
DRIVER_OF = {
    "postgres": {"psycopg"},
    "mysql": {"MySQLdb"},
    "leasetable": {"sqlite3"},
    "memory": set(),
    "redis": {"redis"},
    "zookeeper": {"kazoo", "puresasl"},
    "redlock": set(),
}


def imported(path: Path) -> set[str]:
    """Every module that ``path`` imports, as a full name; also inside functions and under TYPE_CHECKING."""
    package = ["django_distlock", *path.relative_to(PACKAGE).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module or "")))
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def ours(names: set[str]) -> set[str]:
    return {name.removeprefix("django_distlock.") for name in names if name.startswith("django_distlock.")}


# Beside the public names, what operators need and other code does not.
FOR_OPERATORS = {"clock", "diagnosis", "lookup", "migrationlock", "oneline", "pruning", "records"}


def engine(module: str) -> str | None:
    """postgres_session -> postgres."""
    return next((name for name in ENGINES if module == name or module.startswith(f"{name}_")), None)


@pytest.mark.parametrize("name", sorted(PURE))
def test_the_ground_floor_is_pure(name: str) -> None:
    names = imported(PACKAGE / f"{name}.py")
    assert not {module for module in names if module.split(".")[0] in {"django", "asgiref", *DRIVERS}}
    assert {module.split(".")[0] for module in ours(names)} <= PURE


@pytest.mark.parametrize("path", sorted((PACKAGE / "backends").glob("*.py")), ids=lambda path: path.stem)
def test_an_engine_knows_no_other_and_nothing_above_it(path: Path) -> None:
    names = imported(path)
    above = {module.split(".")[0] for module in ours(names)} - PURE - {"backends", "models"}
    assert not above, f"{path.name} imports {above}"
    mine = engine(path.stem)
    for module in ours(names):
        part = module.split(".")
        if part[0] == "backends" and len(part) > 1 and part[1] not in SESSIONS:
            assert engine(part[1]) in {mine, *SIDEWAYS.get(mine or "", ())}, f"{path.name} imports {module}"
    drivers = {module.split(".")[0] for module in names} & DRIVERS
    assert drivers <= DRIVER_OF.get(mine or "", set()), f"{path.name} imports {drivers}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "data").glob("*.py")), ids=lambda path: path.stem)
def test_locks_on_data_know_nothing_of_engines_and_settings(path: Path) -> None:
    """Named locks and data locks are different things: they share errors, decorators and transactions."""
    below = {module.split(".")[0] for module in ours(imported(path))}
    assert not below & {"backends", "registry", "conf", "sitekey", "holdings", "keepalive", "introspection"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "commands").glob("*.py")), ids=lambda path: path.stem)
def test_commands_know_the_public_names_only(path: Path) -> None:
    known = {"commands", *FOR_OPERATORS, *django_distlock.__all__}
    assert {module.split(".")[0] for module in ours(imported(path))} <= known


def test_helpers_for_tests_know_the_public_names_only() -> None:
    """And ``rehearsal``, which is where they touch the inside."""
    for name in ("testing", "pytest_plugin"):
        known = {"clock", "rehearsal", "testing", *django_distlock.__all__}
        assert {module.split(".")[0] for module in ours(imported(PACKAGE / f"{name}.py"))} <= known


def test_opentelemetry_is_named_in_one_place() -> None:
    assert [path.name for path in MODULES if any(m.startswith("opentelemetry") for m in imported(path))] == ["otel.py"]


@pytest.mark.parametrize(
    "path", sorted([PACKAGE / "admin.py", *(PACKAGE / "heldlocks").glob("*.py")]), ids=lambda path: path.stem
)
def test_the_admin_knows_the_public_names_and_its_model_only(path: Path) -> None:
    """The records are those that ``held_locks`` returns, part of the public reference."""
    allowed = {"heldlocks", "history", "lockquery", "lookup", "models", "oneline", "records", *django_distlock.__all__}
    assert {module.split(".")[0] for module in ours(imported(path))} <= allowed


def test_drivers_and_engines_are_named_by_nobody_else() -> None:
    for path in MODULES:
        if path.parent.name == "backends":
            continue
        names = imported(path)
        assert not {module.split(".")[0] for module in names} & DRIVERS, path.name
        engines = {m for m in ours(names) if m.startswith("backends.") and engine(m.split(".")[1])}
        assert not engines, f"{path.name} imports {engines}"


# Of the core beside its public names: the clock, the site key, how arguments are checked, and the tables.
IDEMPOTENCY_MAY_IMPORT = {
    "idempotency",
    "language",
    "clock",
    "sitekey",
    "validation",
    "models",
    *django_distlock.__all__,
}


@pytest.mark.parametrize("path", sorted((PACKAGE / "idempotency").rglob("*.py")), ids=lambda path: path.stem)
def test_idempotency_knows_the_public_names_and_itself(path: Path) -> None:
    names = imported(path)
    assert {module.split(".")[0] for module in ours(names)} <= IDEMPOTENCY_MAY_IMPORT
    if path.stem in ("engine", "records"):  # decisions and values: pure
        assert not {module for module in names if module.split(".")[0] in {"django", "asgiref"}}
        assert {module for module in ours(names) if not module.startswith("idempotency.records")} <= {"idempotency"}


# A feature beside the core: these name it, and do without it.
KNOW_OF_IDEMPOTENCY = {"apps.py", "admin.py", "templatetags/idempotency.py"}


def test_nothing_else_knows_of_idempotency() -> None:
    others = [path for path in MODULES if path.relative_to(PACKAGE).parts[0] != "idempotency"]
    knowing = {
        str(path.relative_to(PACKAGE))
        for path in others
        if "django_distlock.idempotency" in path.read_text()
        or any(name.split(".")[0] == "idempotency" for name in ours(imported(path)))
    }
    assert knowing <= KNOW_OF_IDEMPOTENCY


def test_the_rest_works_without_idempotency(tmp_path: Path) -> None:
    copy = tmp_path / "django_distlock"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "idempotency"))
    code = (
        "import django\n"
        "from django.conf import settings\n"
        "apps = ['django_distlock', 'django.contrib.admin', 'django.contrib.auth', 'django.contrib.contenttypes']\n"
        "settings.configure(INSTALLED_APPS=apps, DATABASES={'default': {'ENGINE': 'django.db.backends.sqlite3'}},"
        " TEMPLATES=[{'BACKEND': 'django.template.backends.django.DjangoTemplates', 'APP_DIRS': True}])\n"
        "django.setup()\n"
        "from django.core.management import call_command\n"
        "from django.template import engines\n"
        "call_command('check', tags=['distlock', 'templates'])\n"
        "import django_distlock.admin\n"
        "assert engines['django'].engine.template_libraries\n"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, timeout=60
    )


def test_settings_are_read_in_one_place() -> None:
    readers = [str(path.relative_to(PACKAGE)) for path in MODULES if "django.conf" in imported(path)]
    assert set(readers) - {"idempotency/conf.py"} == {"checks.py", "conf.py"}


# Clocks of the standard library that stand still while the host is suspended, and those that may be of another kind.
OTHER_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime", "clock_gettime_ns"}


def test_there_is_one_monotonic_clock() -> None:
    """R19: a time of ``time.monotonic()`` says nothing about a lease, and must not be compared with one that does."""
    for path in MODULES:
        names = imported(path) | {
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        others = names & {f"time.{clock}" for clock in OTHER_CLOCKS}
        assert path.name == "clock.py" or not others, f"{path.name} uses {others}: take django_distlock.clock.monotonic"
