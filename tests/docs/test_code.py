"""Every Python block of the README and the documentation runs, page by page, against the real package."""

from __future__ import annotations

import builtins
import contextlib
import io
import subprocess
import symtable
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.dispatch import Signal
from django.test import override_settings
from django.test.utils import isolate_apps

from django_distlock import signals
from tests.docs.pages import PAGES, Block, blocks
from tests.docs.scenes import SCENES, Scene

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("databases")

PAGES_WITH_CODE = [page for page in PAGES if blocks(page)]


def run(block: Block, names: dict[str, Any]) -> None:
    """Execute one block, with its own line numbers; what it prints is what the page says."""
    padded = "\n" * (block.line - 1) + block.code
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(padded, block.page, "exec"), names)  # noqa: S102 - it is what this test is for
    if block.printed is not None:
        assert out.getvalue() == block.printed, f"{block.page}:{block.line}"


def configuration(using: str) -> dict[str, Any]:
    """DISTLOCK of the test project with ``using`` as default, and the alias that pages define as a lease table."""
    aliases: dict[str, Any] = settings.DISTLOCK
    return {**aliases, "default": aliases[using], "leases": aliases["leasetable"]}


@pytest.fixture
def receivers_restored() -> Iterator[None]:
    """Receivers that a page connects are disconnected again."""
    found = [value for value in vars(signals).values() if isinstance(value, Signal)]
    before = [list(signal.receivers) for signal in found]
    yield
    for signal, receivers in zip(found, before, strict=True):
        signal.receivers = receivers
        signal.sender_receivers_cache.clear()


@pytest.mark.usefixtures("receivers_restored")
@pytest.mark.parametrize("page", PAGES_WITH_CODE)
def test_the_code_of_the_page_runs(page: str) -> None:
    scene = SCENES.get(page, Scene())
    names: dict[str, Any] = {"INSTALLED_APPS": [], "MIDDLEWARE": [], "__name__": "testproject.registration.of_a_page"}
    with (
        override_settings(DISTLOCK=configuration(scene.using)),
        isolate_apps("testproject.registration"),
        scene.before() as more,
    ):
        names |= more
        for block in blocks(page):
            run(block, names)
        assert_names_exist(page, names)
        scene.after(names)
    assert not set(names["INSTALLED_APPS"]) - {"django_distlock"}
    if "DISTLOCK" in names:
        assert_settings_are_right(names["DISTLOCK"], names.get("DATABASES", {}))


def assert_names_exist(page: str, names: dict[str, Any]) -> None:
    """Functions that are never called may not use names that the page does not have either."""
    for block in blocks(page):
        functions = symtable.symtable(block.code, page, "exec").get_children()
        for name in {name for function in functions for name in global_names(function)}:
            assert name in names or hasattr(builtins, name), f"{page}:{block.line} uses {name!r}"


def global_names(table: symtable.SymbolTable) -> set[str]:
    found = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
    for child in table.get_children():
        found |= global_names(child)
    return found


def assert_settings_are_right(distlock: dict[str, Any], databases: dict[str, Any]) -> None:
    """The system checks have no objection, but for databases that the page has and the test project has not."""
    with override_settings(DISTLOCK=distlock):
        found = [
            message
            for message in run_checks(tags=["distlock"])
            if not (message.id == "distlock.E005" and any(f"is {alias!r}" in message.msg for alias in databases))
        ]
    assert not found


def test_no_scene_and_no_block_is_forgotten() -> None:
    """A block without a language, or with a misspelt one, would not be run."""
    assert set(SCENES) <= set(PAGES_WITH_CODE)
    known = {"python", "console", "text", "sql", "js", "jsx", "json", "nginx"}
    for page, path in PAGES.items():
        fences = [line[3:].split(" ")[0] for line in path.read_text().splitlines() if line.startswith("```")]
        assert {fence for fence in fences[::2] if not fence.startswith("{")} <= known, page
        assert set(fences[1::2]) <= {""}, page


def test_the_javascript_of_the_pages_can_be_read(tmp_path: Path) -> None:
    scripts = [block for page in PAGES if page.startswith("docs/browser/") for block in blocks(page, "js")]
    for number, block in enumerate(scripts):
        (tmp_path / f"{number}.mjs").write_text(block.code)
        done = subprocess.run(["node", "--check", f"{number}.mjs"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{block.page}:{block.line} {done.stderr}"
    assert scripts
