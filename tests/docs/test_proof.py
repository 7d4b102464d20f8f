"""The page of proof: each sentence of the guarantees has a row, each test that is named exists, and the table of faults
is the recorded one."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

import pytest

from docs._ext import mutant_table
from tests.docs.pages import DOCS, PAGES, tables
from tests.mutants.catalog import MUTANTS
from tests.mutants.results import PATH, recorded
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.mutants.mutant import Mutant

PROOF = PAGES["docs/proof.md"].read_text()
TESTS = ROOT / "tests"
# What a row says that names no test.
NO_TEST = {"definition", "advice", "reason", "not promised"}
LEAST_MUTANTS = 40


def sentences(text: str) -> list[str]:
    """The sentences of a page, and the rows of its tables, without markup. Headings and terms are none."""
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("*", "")
    found: list[str] = []
    for block in re.split(r"\n\s*\n|\n(?=[-:] |\|)", text):
        line = re.sub(r"^[-:] ", "", " ".join(block.split()))
        if line.startswith("|"):
            cells = line.strip("| ").split(" | ")
            found += [" · ".join(cells)] if set(line) - set("|- ") else []
        elif not line.startswith("#") and re.search(r"[.:]$", line):
            found += re.split(r"(?<=[.?])\s+(?=[A-Z`])", line)
    return found


def rows() -> list[list[str]]:
    """The rows of the tables of sentences: sentence, tests."""
    return [row for table in tables(PROOF) if table[0] == ["sentence", "shown by"] for row in table[1:]]


@cache
def names_in(path: Path) -> set[str]:
    """The functions of a file, and the methods of its classes as ``Class::method``."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def exists(node_id: str) -> bool:
    """Is there such a test? ``node_id`` is a path below tests/, perhaps with a name and parameters."""
    file, _, name = node_id.partition("[")[0].partition("::")
    path = TESTS / file
    return path.is_file() and (not name or name in names_in(path))


def test_every_sentence_of_the_guarantees_has_a_row() -> None:
    assert [row[0] for row in rows()] == sentences((DOCS / "guarantees.md").read_text())


def test_sentences_are_cut_where_they_end() -> None:
    text = "# Head\n\nOne. Two\nlines, `x.y()`; see [here](there.md).\n\nTerm\n: Its text. `More` too.\n\n- **b.** C.\n"
    table = "| a | b |\n|---|---|\n| c | d. E |\n"
    assert sentences(text) == ["One.", "Two lines, `x.y()`; see here.", "Its text.", "`More` too.", "b.", "C."]
    assert sentences(table) == ["a · b", "c · d. E"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:40])
def test_the_row_names_tests_that_exist_or_says_why_there_is_none(row: list[str]) -> None:
    named = re.findall(r"`([^`]+)`", row[1])
    assert named or row[1] in NO_TEST
    assert [test for test in named if not exists(test)] == []


def test_other_tests_on_the_page_exist() -> None:
    named = re.findall(r"`tests/([^`]+)`", PROOF)
    assert named
    assert [test for test in named if not exists(test)] == []


def test_a_test_that_does_not_exist_is_seen() -> None:
    assert exists("docs/test_proof.py::test_a_test_that_does_not_exist_is_seen[any]")
    assert not exists("docs/test_proof.py::test_that_was_renamed")
    assert not exists("docs/test_gone.py")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.title)
def test_the_mutant_can_be_made(mutant: Mutant) -> None:
    """Its text is in the package and its tests exist. `make mutants`, which looks as well, is run now and then only."""
    text = (ROOT / mutant.path).read_text()
    assert mutant.applied_to(text) != text
    named = [test.removeprefix("tests/") for test in mutant.tests]
    assert [test for test in named if not (exists(test) or (TESTS / test).is_dir())] == []


def test_the_recorded_mutants_are_those_of_the_catalog() -> None:
    """`make mutants ARGS="--record -k ..."` brings the file up to date."""
    assert len(MUTANTS) >= LEAST_MUTANTS
    shown = [(entry["title"], entry["rule"], entry["file"]) for entry in recorded()]
    assert shown == [(mutant.title, mutant.rule, mutant.path) for mutant in MUTANTS]
    assert [entry["test"] for entry in recorded() if not exists(entry["test"].removeprefix("tests/"))] == []


def test_the_page_shows_the_recorded_mutants(tmp_path: Path) -> None:
    assert "```{mutants}\n```" in PROOF
    (shown,) = tables(mutant_table.mutants(PATH))
    assert len(shown) == 1 + len(MUTANTS)
    assert mutant_table.mutants(tmp_path / "none.json") == mutant_table.NONE_YET
