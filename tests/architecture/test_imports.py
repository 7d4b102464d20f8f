"""Who may import whom: the rules of the house, by folder.

The package has floors. A module imports from its own floor and from lower ones only, also under ``TYPE_CHECKING`` and
inside functions; drivers are named in their engine's folder alone; no circle.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import PACKAGE

if TYPE_CHECKING:
    from pathlib import Path

MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts)

# Bottom up: the first part of a module's name is its room. "" are the public names of the package itself.
FLOORS = [
    {"exceptions", "records", "keys", "conf", "validation", "schema", "models", "signals", "concurrency"},
    {"backends"},
    {"manager"},
    {"locks"},
    {"data"},
    {""},
    {"checks", "middleware", "storage"},
    {"http"},
    {"idempotency", "editing", "browser", "operations", "testing"},
    {"apps", "admin", "pytest_plugin", "templatetags", "management"},
]
# Neighbours on one floor do not know each other, but for these.
# The subcommands of edit locks and browser locks are of those that operations has the frame for.
NEIGHBOURS = {("testing", "operations"), ("editing", "operations"), ("browser", "operations")}
ENGINES = {"memory", "leasetable", "postgres", "mysql", "redis", "redlock", "zookeeper"}
# The one sideways edge: Redlock speaks to each of its nodes as the Redis engine does.
SIDEWAYS = {"redlock": {"redis"}}
DRIVERS = {"psycopg", "psycopg_pool", "MySQLdb", "redis", "kazoo", "sqlite3"}
DRIVER_OF = {
    "postgres": {"psycopg"},
    "mysql": {"MySQLdb"},
    "leasetable": {"sqlite3"},
    "redis": {"redis"},
    "zookeeper": {"kazoo"},
}


def name_of(path: Path) -> str:
    """Below the package: manager/registry.py -> manager.registry, locks/__init__.py -> locks."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {name_of(path): path for path in MODULES}


@cache
def imported(path: Path) -> frozenset[str]:
    """Every module that ``path`` imports, as a full name; also inside functions and under TYPE_CHECKING."""
    package = ["django_distlock", *path.relative_to(PACKAGE).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module or "")))
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                found.add(whole if whole.removeprefix("django_distlock.") in PATHS else module)
    return frozenset(found)


def ours(path: Path) -> set[str]:
    """The modules of the package that ``path`` imports; "" for the public names."""
    names = {name for name in imported(path) if name.partition(".")[0] == "django_distlock"}
    return {name.removeprefix("django_distlock").lstrip(".") for name in names} - {name_of(path)}


def room(module: str) -> str:
    return module.partition(".")[0]


def floor(module: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room(module) in rooms)


def drivers(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in imported(path)} & DRIVERS


@pytest.mark.parametrize("module", PATHS)
def test_every_module_has_its_place(module: str) -> None:
    assert floor(module) >= 0


def test_imports_go_downwards() -> None:
    upwards = {(module, to) for module, path in PATHS.items() for to in ours(path) if floor(to) > floor(module)}
    assert not upwards


def test_neighbours_do_not_know_each_other() -> None:
    """Idempotency, editing and operations use what is below them, and can be taken away one by one."""
    apart = FLOORS[-2]
    found = {
        (room(module), room(to))
        for module, path in PATHS.items()
        for to in ours(path)
        if room(module) in apart and room(to) in apart and room(module) != room(to)
    }
    assert found <= NEIGHBOURS


def test_no_circle() -> None:
    arrows = {module: ours(path) & set(PATHS) for module, path in PATHS.items()}
    assert not circles(arrows)


def circles(arrows: dict[str, set[str]]) -> list[frozenset[str]]:
    """The strongly connected parts of more than one module: what can be reached and reaches back."""
    reach = {module: reachable(module, arrows) for module in arrows}
    parts = {frozenset({module, *(other for other in reach[module] if module in reach[other])}) for module in arrows}
    return [part for part in parts if len(part) > 1]


def reachable(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = arrows[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def test_circles_are_found() -> None:
    arrows = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "d"}}
    assert circles(arrows) == [frozenset({"b", "c"})]


@pytest.mark.parametrize("module", [module for module in PATHS if room(module) == "concurrency"])
def test_concurrency_is_the_standard_library_alone(module: str) -> None:
    allowed = {"django_distlock", *sys.stdlib_module_names}
    assert {name.partition(".")[0] for name in imported(PATHS[module])} <= allowed
    assert {room(to) for to in ours(PATHS[module])} <= {"concurrency"}


@pytest.mark.parametrize(
    "module",
    ["exceptions", "records", "keys", "validation", "idempotency.decisions", "editing.records", "storage.values"],
)
def test_values_and_decisions_know_no_django(module: str) -> None:
    names = {name.partition(".")[0] for name in imported(PATHS[module])}
    assert not names & {"django", "asgiref", *DRIVERS}


def engine(module: str) -> str | None:
    """backends.postgres.session -> postgres; None for what all engines share."""
    parts = module.split(".")
    return parts[1] if parts[0] == "backends" and len(parts) > 1 and parts[1] in ENGINES else None


@pytest.mark.parametrize("module", [module for module in PATHS if room(module) == "backends"])
def test_an_engine_knows_no_other_and_only_its_own_driver(module: str) -> None:
    mine = engine(module)
    others = {engine(to) for to in ours(PATHS[module])} - {mine, None}
    assert others <= SIDEWAYS.get(mine or "", set())
    assert drivers(PATHS[module]) <= DRIVER_OF.get(mine or "", set())


def test_drivers_and_engines_are_named_by_nobody_else() -> None:
    for module, path in PATHS.items():
        if room(module) != "backends":
            assert not drivers(path), module
            assert not {to for to in ours(path) if engine(to)}, module


# What operators need and other code does not.
FOR_OPERATORS = {
    "",
    "checks",
    "records",
    "concurrency",
    "models",
    "conf",
    "backends.query",
    "operations",
}


@pytest.mark.parametrize("module", [module for module in PATHS if module.startswith("operations.commands")])
def test_commands_and_the_admin_know_the_public_names_and_operations(module: str) -> None:
    for to in ours(PATHS[module]):
        assert {to, room(to)} & FOR_OPERATORS, f"{module} imports {to}"


def test_helpers_for_tests_know_the_public_names_only() -> None:
    """And ``test_support``, which is where they touch the inside."""
    known = {"", "testing", "operations.test_support", "concurrency.clock"}
    assert ours(PATHS["testing"]) | ours(PATHS["pytest_plugin"]) <= known


def test_opentelemetry_is_named_in_one_place() -> None:
    naming = [path.name for path in MODULES if any(m.startswith("opentelemetry") for m in imported(path))]
    assert naming == ["otel.py"]


@pytest.mark.parametrize("module", [module for module in PATHS if room(module) == "data"])
def test_locks_on_data_know_nothing_of_engines_and_settings(module: str) -> None:
    """Named locks and data locks are different things: they share errors, decorators and transactions."""
    below = ours(PATHS[module])
    assert not {room(to) for to in below} & {"backends", "conf"}
    assert not below & {f"manager.{name}" for name in ("registry", "site_key", "lock_table", "keepalive")}


# Of the core beside its public names: requests, the site key, how settings and arguments are checked, the tables, the
# language of its pages.
IDEMPOTENCY_MAY_IMPORT = {
    "",
    "conf",
    "concurrency",
    "http",
    "idempotency",
    "middleware",
    "manager.site_key",
    "validation",
    "models",
    "schema",
}


# Of the core beside its public names: errors, requests, statements, how settings and arguments are checked, the table,
# the language of its pages.
EDITING_MAY_IMPORT = {
    "",
    "conf",
    "concurrency",
    "editing",
    "exceptions",
    "http",
    "middleware",
    "storage",
    "validation",
    "models",
    "schema",
}
BROWSER_MAY_IMPORT = EDITING_MAY_IMPORT - {"editing"} | {"browser", "keys", "locks"}


@pytest.mark.parametrize("module", [module for module in PATHS if room(module) == "idempotency"])
def test_idempotency_knows_the_public_names_and_itself(module: str) -> None:
    for to in ours(PATHS[module]):
        assert {to, room(to)} & IDEMPOTENCY_MAY_IMPORT, f"{module} imports {to}"


@pytest.mark.parametrize("module", [module for module in PATHS if room(module) == "editing"])
def test_editing_knows_the_public_names_and_itself(module: str) -> None:
    """Its subcommand knows the frame of the others as well."""
    frame = {"operations"} if module in ("editing.command", "editing.admin.held") else set()
    for to in ours(PATHS[module]):
        assert {to, room(to)} & (EDITING_MAY_IMPORT | frame), f"{module} imports {to}"


@pytest.mark.parametrize("module", [module for module in PATHS if room(module) == "browser"])
def test_browser_locks_know_the_public_names_and_themselves(module: str) -> None:
    frame = {"operations"} if module in ("browser.command", "browser.held") else set()
    for to in ours(PATHS[module]):
        assert {to, room(to)} & (BROWSER_MAY_IMPORT | frame), f"{module} imports {to}"


# Features beside the core: these name them, and do without them.
KNOW_OF = {
    "idempotency": {"apps", "admin", "templatetags.idempotency"},
    "editing": {"apps", "admin", "management.commands.distlock", "templatetags.editing"},
    "browser": {"apps", "admin", "management.commands.distlock", "templatetags.distlock_browser"},
}


@pytest.mark.parametrize("feature", KNOW_OF)
def test_nothing_else_knows_of_a_feature(feature: str) -> None:
    knowing = {
        module
        for module, path in PATHS.items()
        if room(module) != feature
        and (f"django_distlock.{feature}" in path.read_text() or feature in map(room, ours(path)))
    }
    assert knowing <= KNOW_OF[feature]


@pytest.mark.parametrize("feature", KNOW_OF)
def test_the_rest_works_without_a_feature(tmp_path: Path, feature: str) -> None:
    copy = tmp_path / "django_distlock"
    ignored = shutil.ignore_patterns("__pycache__", feature)
    shutil.copytree(PACKAGE, copy, ignore=ignored)
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
    readers = {module for module, path in PATHS.items() if "django.conf" in imported(path)}
    assert readers - {"idempotency.conf", "editing.conf", "browser.conf"} == {"checks.settings", "conf"}


# Clocks of the standard library that stand still while the host is suspended, and those that may be of another kind.
OTHER_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime", "clock_gettime_ns"}


def test_there_is_one_monotonic_clock() -> None:
    """R19: a time of ``time.monotonic()`` says nothing about a lease, and must not be compared with one that does."""
    for module, path in PATHS.items():
        tree = ast.parse(path.read_text())
        used = {
            f"{node.value.id}.{node.attr}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        used |= {
            f"{node.module}.{alias.name}"
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        others = used & {f"time.{clock}" for clock in OTHER_CLOCKS}
        assert module == "concurrency.clock" or not others, f"{module} uses {others}: take concurrency.clock.monotonic"
