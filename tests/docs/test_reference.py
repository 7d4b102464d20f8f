"""What the reference pages list is what the code knows: options, check ids, signals, errors, links."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import asdict

import pytest

import django_distlock
from django_distlock import conf, exceptions, signals
from django_distlock.browser.conf import BrowserConfig
from django_distlock.editing.conf import EditingConfig
from django_distlock.idempotency.conf import OF_SITE, Options
from docs._ext import backend_flags
from tests.docs.pages import PAGES, blocks, tables
from tests.matrix import MATRIX
from tests.support.paths import PACKAGE

SOURCES = [path.read_text() for path in PACKAGE.rglob("*.py")]
ERRORS = {name for name, value in vars(exceptions).items() if isinstance(value, type)}


def first_column(page: str) -> set[str]:
    return {row[0].strip("`") for table in tables(PAGES[page].read_text()) for row in table[1:]}


def test_the_table_of_backends_has_each() -> None:
    shown = {backend_flags.path_of(backend) for backend in backend_flags.backends()}
    assert shown == {entry.backend for entry in MATRIX}


def test_an_alias_is_defined_on_the_page_that_uses_it() -> None:
    """The first error that a newcomer saw was "There is no lock backend 'leases'"."""
    for page in PAGES:
        code = [block.code for block in blocks(page)]
        used = {alias for text in code for alias in re.findall(r'using="(\w+)"', text)}
        settings = [text for text in code if "DISTLOCK" in text or "DATABASES" in text]
        defined = {alias for text in settings for alias in re.findall(r'^ {4}"(\w+)": \{', text, re.M)}
        assert used <= defined | {"default"}, page


def test_every_key_of_an_alias_is_documented_with_its_default() -> None:
    page = "docs/reference/settings.md"
    assert {cell for cell in first_column(page) if cell.isupper()} == set(conf.KEYS)
    rows = {row[0].strip("`"): row[1].strip("`") for table in tables(PAGES[page].read_text()) for row in table}
    for key in set(conf.KEYS) - {"BACKEND", "OPTIONS"}:
        default = inspect.signature(conf.AliasConfig).parameters[key.lower()].default
        assert rows[key] == (f"{default:g}" if isinstance(default, int | float) else str(default) or '""'), key


SETTINGS = {
    "docs/idempotency/settings.md": {name: getattr(Options(), name) for name in OF_SITE},
    "docs/editing/code.md": asdict(EditingConfig()),
    "docs/browser/server.md": asdict(BrowserConfig()),
}


@pytest.mark.parametrize("page", SETTINGS)
def test_every_key_of_a_feature_is_documented_with_its_default(page: str) -> None:
    rows = [row for table in tables(PAGES[page].read_text()) if table[0][:2] == ["key", "default"] for row in table[1:]]
    documented = {row[0].strip("`").lower(): ast.literal_eval(row[1].strip("`")) for row in rows}
    assert documented == SETTINGS[page]


def test_every_option_is_documented_on_the_page_of_its_backend() -> None:
    for backend in backend_flags.backends():
        page = f"docs/{backend_flags.page_of(backend_flags.module_of(backend))}.md"
        assert backend.option_names <= set(re.findall(r"`(\w+)`", PAGES[page].read_text())), page


def test_every_check_is_documented() -> None:
    found = {name for source in SOURCES for name in re.findall(r'id="(distlock\.[EW]\d{3})"', source)}
    assert set(re.findall(r"^`(distlock\.\w+)`$", PAGES["docs/reference/checks.md"].read_text(), re.M)) == found


def test_every_signal_error_public_name_and_logger_is_documented() -> None:
    listed = {name for name in first_column("docs/reference/api.md") if name.startswith("lock_")}
    assert listed == {name for name in vars(signals) if name.startswith("lock_")}
    assert ERRORS - {"DistlockError"} <= first_column("docs/usage/waiting.md")
    api = set(re.findall(r"django_distlock\.(\w+)(?:\(\))?$", PAGES["docs/reference/api.md"].read_text(), re.MULTILINE))
    assert set(django_distlock.__all__) - ERRORS <= api
    loggers = {name.strip('"') for source in SOURCES for name in re.findall(r"getLogger\((.*)\)", source)}
    assert {cell for cell in first_column("docs/operations.md") if cell.startswith("django_distlock.")} == loggers
