"""Sphinx configuration. ``make docs`` builds with warnings as errors."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import django
from django.conf import settings

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

# The modules are imported for their docstrings and flags; no database is opened.
settings.configure(INSTALLED_APPS=["django_distlock"], USE_TZ=True)
django.setup()

from django_distlock import __version__  # noqa: E402 - needs the settings

project = "django-distlock"
author = "django-distlock contributors"
project_copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "generated"]
exclude_patterns = ["_build", "_ext"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

# Without a driver the module of its backend cannot be imported; its flags and docstrings need none.
autodoc_mock_imports = [name for name in ("psycopg", "MySQLdb", "kazoo") if importlib.util.find_spec(name) is None]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"django-distlock {release}"
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_search_scorer = str(HERE / "_ext" / "scorer.js")
html_copy_source = False
html_show_sourcelink = False
pygments_style = "default"
pygments_dark_style = "github-dark"


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-signature", shorten_signature)


# What Sphinx cannot know: advisory_lock is a class with another name, and a Lock returns a Lease.
RETURNS = {
    "advisory_lock": "Lock",
    "acquire": "Lease",
    "aacquire": "Lease",
    "try_acquire": "Lease | None",
    "atry_acquire": "Lease | None",
}


def shorten_signature(
    app: Sphinx, what: str, name: str, obj: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Say ``Timeout`` for a time that may be left out, where Sphinx spells the alias out."""
    for spelt in ("float | None | ~typing.Literal[Unset.UNSET]", "float | None | Literal[Unset.UNSET]"):
        signature = signature and signature.replace(spelt, "Timeout")
    return signature, RETURNS.get(name.rpartition(".")[2], returns)
