"""The translations: each has every text of the package, and what is compiled is what was written."""

from __future__ import annotations

import gettext
import io
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.paths import PACKAGE

if TYPE_CHECKING:
    from pathlib import Path

CATALOGS = sorted(PACKAGE.glob("locale/*/LC_MESSAGES/django.po"))
CURE = "run `make messages`, translate what is new in each django.po, and run it again"


def run(*command: str | Path, cwd: Path = PACKAGE) -> subprocess.CompletedProcess[bytes]:
    """Its messages come in English, and UTF-8 is understood."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "LANGUAGE": ""}
    return subprocess.run(command, cwd=cwd, capture_output=True, env=environment, timeout=60)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every text of the package as it is now, gathered in a copy."""
    copy = tmp_path_factory.mktemp("messages") / "package"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    done = run(sys.executable, "-P", "-m", "django", "makemessages", "--all", "--no-location", "--keep-pot", cwd=copy)
    assert done.returncode == 0, done.stderr.decode()
    return copy / "locale" / "django.pot"


def test_the_languages() -> None:
    assert {"de", "fr", "es", "pt", "fa"} <= {path.parts[-3] for path in CATALOGS}


def test_every_text_is_translated_and_no_other(template: Path) -> None:
    """Whatever ``msgcmp`` says is a fault: missing, empty, fuzzy, or used nowhere."""
    for catalog in CATALOGS:
        done = run("msgcmp", catalog, template)
        assert not done.stderr, f"{CURE}:\n{done.stderr.decode()}"
        assert "\n#~" not in catalog.read_text(), CURE


def test_placeholders_fit_and_each_is_compiled_as_it_is_written() -> None:
    """The texts are compared: another msgfmt may order the bytes otherwise."""
    for catalog in CATALOGS:
        done = run("msgfmt", "--check-format", "--check-domain", "--output-file=-", catalog)
        assert done.returncode == 0, done.stderr.decode()
        expected = gettext.GNUTranslations(io.BytesIO(done.stdout))
        with catalog.with_suffix(".mo").open("rb") as compiled:
            found = gettext.GNUTranslations(compiled)
        assert found._catalog == expected._catalog, CURE  # type: ignore[attr-defined]
        assert found.pgettext("code of the language of these translations", "en") == catalog.parts[-3]
