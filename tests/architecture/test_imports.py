"""Who may import whom: the package has floors, and a module imports from its own floor and from lower ones only, also
under ``TYPE_CHECKING`` and inside functions. Drivers are named in their engine's folder alone."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
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
    {"http", "leases"},
    {"idempotency", "editing", "browser", "operations", "testing"},
    {"apps", "admin", "pytest_plugin", "templatetags", "management"},
]
# Neighbours on one floor do not know each other, but for these: operations has the frame for commands and lists.
NEIGHBOURS = {("testing", "operations"), ("editing", "operations"), ("browser", "operations")}
FEATURES = ["idempotency", "editing", "browser"]
# The one sideways edge: Redlock speaks to each of its nodes as the Redis engine does.
SIDEWAYS = {("redlock", "redis")}
DRIVER_OF = {
    "postgres": {"psycopg", "psycopg_pool"},
    "mysql": {"MySQLdb"},
    "leasetable": {"sqlite3"},
    "redis": {"redis"},
    "redlock": {"redis"},
    "zookeeper": {"kazoo"},
}
DRIVERS = set().union(*DRIVER_OF.values())
ENGINES = {*DRIVER_OF, "memory"}


def name_of(path: Path) -> str:
    """Below the package: manager/registry.py -> manager.registry, locks/__init__.py -> locks."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {name_of(path): path for path in MODULES}


@cache
def imported(module: str) -> frozenset[str]:
    """Every module that it imports, as a full name; also inside functions and under TYPE_CHECKING."""
    path = PATHS[module]
    package = ["django_distlock", *path.relative_to(PACKAGE).parts[:-1]]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, (base, node.module or "")))
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                found.add(whole if whole.removeprefix("django_distlock.") in PATHS else origin)
    return frozenset(found)


def ours(module: str) -> set[str]:
    """The modules of the package that it imports; "" for the public names."""
    names = {name for name in imported(module) if name.partition(".")[0] == "django_distlock"}
    return {name.removeprefix("django_distlock").lstrip(".") for name in names} - {module}


def tops(module: str) -> set[str]:
    return {name.partition(".")[0] for name in imported(module)}


def room(module: str) -> str:
    return module.partition(".")[0]


def floor(module: str) -> int:
    return next(number for number, rooms in enumerate(FLOORS) if room(module) in rooms)


def engine(module: str) -> str | None:
    """backends.postgres.session -> postgres; None for what all engines share."""
    parts = module.split(".")
    return parts[1] if parts[0] == "backends" and len(parts) > 1 and parts[1] in ENGINES else None


ARROWS = [(module, to) for module in PATHS for to in ours(module)]


def test_imports_go_downwards() -> None:
    assert not [(module, to) for module, to in ARROWS if floor(to) > floor(module)]
    apart = FLOORS[-2]
    between = {(room(module), room(to)) for module, to in ARROWS if {room(module), room(to)} <= apart}
    assert {pair for pair in between if pair[0] != pair[1]} <= NEIGHBOURS


def test_no_circle() -> None:
    TopologicalSorter({module: ours(module) & set(PATHS) for module in PATHS}).prepare()  # CycleError names them


def test_an_engine_knows_no_other_and_only_its_own_driver() -> None:
    for module in PATHS:
        own = engine(module)
        assert tops(module) & DRIVERS <= DRIVER_OF.get(own or "", set()), module
    across = {(engine(module), engine(to)) for module, to in ARROWS if engine(to) not in (None, engine(module))}
    assert across <= SIDEWAYS


def test_concurrency_is_the_standard_library_alone() -> None:
    modules = [module for module in PATHS if room(module) == "concurrency"]
    assert {room(to) for module in modules for to in ours(module)} <= {"concurrency"}
    assert set().union(*map(tops, modules)) <= {"django_distlock", *sys.stdlib_module_names}


def test_settings_and_opentelemetry_are_named_in_one_place() -> None:
    readers = {module for module in PATHS if "django.conf" in imported(module)}
    assert readers == {"checks.settings", "conf", *(f"{feature}.conf" for feature in FEATURES)}
    assert [module for module in PATHS if "opentelemetry" in tops(module)] == ["operations.otel"]


# Clocks of the standard library that stand still while the host is suspended, and those that may be of another kind.
OTHER_CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "clock_gettime", "clock_gettime_ns"}


def test_there_is_one_monotonic_clock() -> None:
    """R19: a time of ``time.monotonic()`` says nothing about a lease. A name that is imported cannot be turned by a
    test: ``clock.now()``."""
    for module, path in PATHS.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and module != "concurrency.clock":
                assert node.value.id != "time" or node.attr not in OTHER_CLOCKS, f"{module}: clock.now()"
            if isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] in ("time", "clock"):
                assert not (OTHER_CLOCKS | {"now"}) & {alias.name for alias in node.names}, f"{module}: clock.now()"


PROGRAM = """
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_distlock", "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}],
)
django.setup()
from django.core.management import call_command
from django.template import engines
call_command("check", tags=["distlock", "templates"])
call_command("migrate", verbosity=0)
import django_distlock.admin
assert engines["django"].engine.template_libraries
from django_distlock import advisory_lock
with advisory_lock("a"):
    pass
"""


@pytest.mark.parametrize("feature", FEATURES)
def test_the_rest_works_without_a_feature(tmp_path: Path, feature: str) -> None:
    ignored = shutil.ignore_patterns("__pycache__", feature)
    shutil.copytree(PACKAGE, tmp_path / "django_distlock", ignore=ignored)
    environment = {"PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, cwd=tmp_path, env=environment, timeout=60)
