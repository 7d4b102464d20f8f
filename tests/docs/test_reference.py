"""What the reference pages list is what the code knows: flags, settings, options, check ids, signals, errors, links."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import django_distlock
from django_distlock import conf, exceptions, signals
from django_distlock.backends.base import Backend
from docs._ext import backend_flags
from tests.docs.pages import DOCS, PAGES, ROOT, blocks, tables
from tests.matrix import MATRIX

# Flags that mean nothing to who chooses a backend: how it queues its waiters and keeps names, and what all of them can.
NOT_SHOWN = {"queues_waiters", "supports_break", "apart_from_databases", "keeps_notes"}
YES = {True: "yes", False: "no"}


def flags() -> set[str]:
    return {name for name, value in vars(Backend).items() if isinstance(value, bool)}


def test_the_generated_table_has_every_backend_of_the_matrix() -> None:
    shown = {backend_flags.path_of(backend) for backend in backend_flags.backends()}
    assert shown == {entry.backend for entry in MATRIX}


def test_the_generated_table_has_every_flag() -> None:
    assert set(backend_flags.FEATURES) == flags() - NOT_SHOWN


def test_the_generated_table_says_what_the_flags_say() -> None:
    (rows,) = tables(backend_flags.table("{module}"))
    header, _promise, *features = rows
    modules = {backend_flags.module_of(backend): backend for backend in backend_flags.backends()}
    assert header[1:] == list(modules)
    for flag, row in zip(backend_flags.FEATURES, features, strict=True):
        assert row[1:] == [YES[getattr(backend, flag)] for backend in modules.values()], flag


def test_the_table_in_the_readme_is_the_generated_one() -> None:
    readme = PAGES["README.md"].read_text()
    shown = readme.partition("<!-- backends -->\n")[2].partition("\n<!-- /backends -->")[0]
    assert shown == backend_flags.table(backend_flags.README_LINK), (
        "paste what `python docs/_ext/backend_flags.py` prints between the markers"
    )
    assert "```{backend-table}\n```" in PAGES["docs/choosing.md"].read_text()


# Sentences that say which engines can do something: page, words around the names, what the classes of the engines say.
SAID = [
    ("usage/several.md", "Shared locks exist on (.+?)\\. Elsewhere", lambda backend: backend.supports_shared),
    ("usage/several.md", "backend\\. (.+?) count the holders themselves", lambda backend: backend.supports_semaphore),
    ("usage/several.md", "On (.+?) a semaphore is made of", lambda backend: not backend.supports_semaphore),
    ("usage/waiting.md", "On (.+?) a lock has a TTL", lambda backend: backend.supports_ttl),
    ("usage/waiting.md", r"(PostgreSQL[^.`]+?) have no TTL", lambda backend: not backend.supports_ttl),
    ("usage/fencing.md", "(Redis[^.]+?) give fencing tokens", lambda backend: backend.supports_fencing),
    ("guarantees.md", r"\*\*C, lease\*\* \| (.+?) \|", lambda backend: backend_flags.promise(backend) == "C"),
    (
        "choosing.md",
        "I need a fencing token\\.\\*(.+?) Redlock does not",
        lambda backend: backend.supports_fencing and backend_flags.promise(backend) == "C",
    ),
]


@pytest.mark.parametrize(("page", "pattern", "can"), SAID, ids=[f"{page}: {said}" for page, said, _ in SAID])
def test_what_a_page_says_of_engines_is_what_their_flags_say(page: str, pattern: str, can: Any) -> None:
    text = " ".join((DOCS / page).read_text().split())
    found = re.search(pattern, text)
    assert found, f"{page} does not say it in these words any more: change the words here as well"
    words = re.sub(r"\]\([^)]*\)|[*\[]", "", next(filter(None, found.groups())))
    mentioned = {name for name in backend_flags.ENGINES.values() if all(part in words for part in name.split(", "))}
    assert mentioned == {
        backend_flags.ENGINES[backend_flags.module_of(backend)] for backend in backend_flags.backends() if can(backend)
    }


@pytest.mark.parametrize("page", PAGES)
def test_an_alias_is_defined_on_the_page_that_uses_it(page: str) -> None:
    """The first error that a newcomer saw was "There is no lock backend 'leases'"."""
    code = [block.code for block in blocks(page)]
    used = {alias for text in code for alias in re.findall(r'using="(\w+)"', text)}
    defined = {alias for text in code if "DISTLOCK" in text for alias in re.findall(r'^ {4}"(\w+)": \{', text, re.M)}
    databases = {alias for text in code if "DATABASES" in text for alias in re.findall(r'^ {4}"(\w+)": \{', text, re.M)}
    assert used <= defined | databases | {"default"}


def test_every_backend_has_a_page_in_the_table_of_contents() -> None:
    index = PAGES["docs/index.md"].read_text()
    for module in backend_flags.ENGINES:
        assert f"docs/backends/{module}.md" in PAGES
        assert f"\nbackends/{module}\n" in index


def first_column(page: str) -> set[str]:
    return {row[0].strip("`") for table in tables(PAGES[page].read_text()) for row in table[1:]}


def test_every_key_of_an_alias_is_documented() -> None:
    documented = {cell for cell in first_column("docs/reference/settings.md") if cell.isupper()}
    assert documented == set(conf.KEYS)


def documented_default(key: str) -> str:
    for table in tables(PAGES["docs/reference/settings.md"].read_text()):
        for row in table:
            if row[0] == f"`{key}`":
                return row[1].strip("`")
    raise AssertionError(f"{key} is not documented")


@pytest.mark.parametrize("key", [key for key in conf.KEYS if key not in ("BACKEND", "OPTIONS")])
def test_the_documented_defaults_are_those_of_the_code(key: str) -> None:
    default = inspect.signature(conf.AliasConfig).parameters[key.lower()].default
    assert documented_default(key) == (str(default) if default is None else f"{default:g}")


def test_the_documented_default_backends_are_those_of_the_code() -> None:
    text = PAGES["docs/reference/settings.md"].read_text()
    for backend in [*conf.DEFAULT_BACKENDS.values(), conf.FALLBACK_BACKEND]:
        assert f"| `{backend}` |" in text


def test_every_option_is_documented_in_the_reference_and_on_the_page_of_its_backend() -> None:
    everywhere: set[str] = set()
    for backend in backend_flags.backends():
        page = f"docs/backends/{backend_flags.module_of(backend)}.md"
        listed = {cell for cell in first_column(page) if re.fullmatch(r"[a-z_]+", cell)}
        assert backend.option_names <= listed, page
        everywhere |= backend.option_names
    listed = {cell for cell in first_column("docs/reference/settings.md") if cell.islower()}
    assert listed - {"any other"} == everywhere


def test_every_check_is_documented_with_its_level() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "django_distlock").rglob("*.py"))
    found = set(re.findall(r'id="(distlock\.[EW]\d{3})"', sources))
    rows = {row[0].strip("`"): row[1] for row in tables(PAGES["docs/reference/checks.md"].read_text())[0][1:]}
    assert set(rows) == found
    assert all(level == {"E": "error", "W": "warning"}[name[9]] for name, level in rows.items())


def test_every_signal_is_documented() -> None:
    listed = {name for name in first_column("docs/reference/signals.md") if name.startswith("lock_")}
    assert listed == {name for name in vars(signals) if name.startswith("lock_")}


def test_every_reason_of_a_loss_is_documented() -> None:
    sources = [path.read_text() for path in Path(django_distlock.__file__).parent.rglob("*.py")]
    reasons = {
        reason for source in sources for reason in re.findall(r'\blose(?:_dead)?\(hold, (?:\w+, )?"(\w+)"', source)
    }
    table = tables(PAGES["docs/reference/signals.md"].read_text())[-1]
    assert table[0][0] == "reason"
    assert {row[0].strip("`") for row in table[1:]} == reasons


def test_every_error_is_on_the_page_about_errors() -> None:
    listed = first_column("docs/usage/waiting.md")
    errors = {name for name, value in vars(exceptions).items() if isinstance(value, type)} - {"DistlockError"}
    assert errors <= listed


def test_every_public_name_is_in_the_api_reference() -> None:
    text = PAGES["docs/reference/api.md"].read_text()
    documented = set(re.findall(r"django_distlock\.(\w+)(?:\(\))?$", text, re.MULTILINE))
    errors = {name for name, value in vars(exceptions).items() if isinstance(value, type)}
    assert ".. automodule:: django_distlock.exceptions" in text
    assert set(django_distlock.__all__) - errors <= documented


LOGGERS = {
    f"django_distlock.{name}"
    for name in ("backends", "browser", "editing", "idempotency", "leader", "locks", "operations")
}


def test_the_loggers_are_these_and_documented() -> None:
    """Operators write these names into LOGGING: a new one goes nowhere, and one that is renamed is no longer seen."""
    sources = [path.read_text() for path in Path(django_distlock.__file__).parent.rglob("*.py")]
    found = [name for source in sources for name in re.findall(r"getLogger\((.*)\)", source)]
    assert {name.strip('"') for name in found} == LOGGERS
    assert {cell for cell in first_column("docs/operations.md") if cell.startswith("django_distlock.")} == LOGGERS


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HERE = (
    f"{PROJECT['urls']['Source']}/blob/main/",
    "https://raw.githubusercontent.com/django-distlock/django-distlock/main/",
)


def links(page: str) -> list[str]:
    """The targets of a page's links and pictures; an address of this repository as its path there."""
    text = PAGES[page].read_text()
    found = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    for here in HERE:
        found = [f"{'../' * page.count('/')}{to.removeprefix(here)}" if to.startswith(here) else to for to in found]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    """Sphinx checks those of the documentation too; nothing else checks those of the README."""
    for target in links(page):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = (PAGES[page].parent / name).resolve() if name else PAGES[page]
        assert path.is_file(), f"{page} links to {target}"
        assert path.is_relative_to(ROOT)
        assert not anchor or anchor in anchors(path), f"{page} links to {target}"


def test_the_readme_reads_on_pypi_too() -> None:
    """Nothing is relative there: each link is absolute, and each reference is defined."""
    text = re.sub(r"^```.*?^```$", "", PAGES["README.md"].read_text(), flags=re.MULTILINE | re.DOTALL)
    assert all(to.startswith("https://") for to in re.findall(r"\]\(([^)\s]+)\)", text))
    defined = set(re.findall(r"^\[([^\]]+)\]: https://\S+$", text, re.MULTILINE))
    shown = re.sub(r"^\[[^\]]+\]: .*$|`[^`]*`", "", text, flags=re.MULTILINE)
    used = {second or first for first, second in re.findall(r"(?<!!)\[([^\]]+)\](?:\[([^\]]*)\])?(?!\()", shown)}
    assert {name.lower() for name in used} == defined
    assert {"Source", "Documentation", "Changelog", "Issues"} <= set(PROJECT["urls"])


def test_the_summary_names_what_is_in_the_package() -> None:
    for word in ("row", "table", "idempotency", "admin", "PostgreSQL", "MariaDB", "SQLite", "Redis", "ZooKeeper"):
        assert word in PROJECT["description"]


def test_the_documentation_says_nothing_of_names_that_do_not_exist() -> None:
    """Roles and directives are resolved by Sphinx; here the dotted paths in the text."""
    for page, path in PAGES.items():
        for dotted in set(re.findall(r"`(django_distlock(?:\.\w+)+)`", path.read_text())):
            if dotted.startswith("django_distlock.testing") or dotted in first_column("docs/operations.md"):
                continue  # planned, and said to be; names of loggers
            assert resolves(dotted), f"{page} names {dotted}"


def resolves(dotted: str) -> bool:
    from importlib import import_module

    module, _, name = dotted.rpartition(".")
    try:
        import_module(dotted)
    except ImportError:
        found: Any = import_module(module)
        return hasattr(found, name)
    return True


def test_no_page_is_forgotten_in_the_table_of_contents() -> None:
    index = PAGES["docs/index.md"].read_text()
    for page, path in PAGES.items():
        if path.is_relative_to(DOCS) and path.name != "index.md":
            assert f"\n{path.relative_to(DOCS).with_suffix('')}\n" in index, page
