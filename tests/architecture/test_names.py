"""What modules and classes may be called, and which small modules stay apart."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from tests.architecture.test_imports import PATHS, ours
from tests.support.paths import PACKAGE

if TYPE_CHECKING:
    from pathlib import Path

DRAWERS = {"utils", "helpers", "core", "common", "misc", "tools", "base_utils"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def test_no_module_is_a_drawer() -> None:
    assert not [module for module in PATHS if DRAWERS & set(module.split("."))]


def test_a_class_name_stands_for_one_class() -> None:
    names = Counter(
        node.name
        for path in PATHS.values()
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and node.name != "Meta"
    )
    assert not {name: count for name, count in names.items() if count > 1}


def test_three_siblings_with_one_prefix_are_a_package() -> None:
    prefixes = Counter(
        (path.parent, path.stem.partition("_")[0]) for path in PATHS.values() if "_" in path.stem.strip("_")
    )
    assert not {str(folder.relative_to(PACKAGE)): prefix for (folder, prefix), count in prefixes.items() if count > 2}


def test_no_method_is_named_in_a_string() -> None:
    """``getattr(engine, "a" + name)`` and the like: neither mypy nor an editor can follow it."""
    found = []
    for module, path in PATHS.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                name = node.args[1]
                if isinstance(name, (ast.BinOp, ast.JoinedStr)):
                    found.append(f"{module}:{node.lineno}")
    assert not found


def small_with_one_importer() -> set[str]:
    importers: dict[str, set[str]] = {}
    for module, path in PATHS.items():
        for to in ours(path):
            importers.setdefault(to, set()).add(module)
    return {
        module
        for module, path in PATHS.items()
        if path.name != "__init__.py"
        and len(importers.get(module, ())) == 1
        and len(re.findall(r"\n", path.read_text())) < 100
    }


# Modules of less than 100 lines that only one other imports, each with the reason why it is not a part of that one.
REASONS = {
    "backends.begin_listener": "it has SQL, which manager/ may not have",
    "backends.leasetable.pruning": "a thread that deletes old rows, beside the acquiring",
    "backends.zookeeper.doctor": "the same role in each engine",
    "backends.zookeeper.introspection": "the same role in each engine",
    "browser.command": "one subcommand",
    "browser.held": "Django's admin imports it, and it alone needs the admin",
    "data.tables.postgres": "one engine's SQL",
    "editing.admin.comparison": "one idea, beside the requests of the admin",
    "editing.command": "one subcommand",
    "editing.http.texts": "the texts of the script, which translators look for in one place",
    "editing.store.saves": "inside the transaction of a save, where errors are not translated",
    "idempotency.admin": "Django's admin imports it, and it alone needs the admin",
    "idempotency.signals": "public names",
    "manager.deadlock": "one idea, and the place where a reader looks for it",
    "operations.commands.doctor": "one subcommand",
    "operations.commands.prune": "one subcommand",
    "operations.migration_lock": "commands may not import the registry",
    "operations.pruning": "commands may not import the registry",
    "operations.test_support": "the public helpers for tests may not touch the inside",
}


def test_a_small_module_with_one_importer_has_a_reason() -> None:
    assert small_with_one_importer() == set(REASONS)
