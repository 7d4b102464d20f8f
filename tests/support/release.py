"""What has to hold before a release: ``make release-check``.

Builds sdist and wheel from the files that git knows, checks metadata, contents, README and links, installs the wheel
into an empty environment and runs a smoke test from there on each database, or on those that are named.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.paths import PACKAGE, ROOT
from tests.support.services import load

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# What the package needs beside its modules.
DATA = ("*.html", "*.css", "*.js", "*.lua", "*.mo", "py.typed")
REPOSITORY = "https://github.com/django-distlock/django-distlock/"
FILE_LINK = re.compile(re.escape(REPOSITORY) + r"(?:blob|tree)/main/([^)#\s]+)")
IMAGE_LINK = re.compile(r"https://raw\.githubusercontent\.com/django-distlock/django-distlock/main/([^)\s]+)")

SETTINGS = """
INSTALLED_APPS += ["django_distlock"]
DATABASES = {"default": {database!r}}
"""
SMOKE = """
import os, subprocess, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "site_.settings"
import django
django.setup()
import django_distlock
from django.contrib.auth.models import User
from django.db import transaction
from django_distlock import LockNotAcquired, advisory_lock, held_locks, row_lock

if sys.argv[1:]:
    try:
        advisory_lock("smoke", timeout=0).acquire().release()
    except LockNotAcquired:
        sys.exit(7)
    sys.exit(0)
other = [sys.executable, __file__, "other"]
with advisory_lock("smoke"):
    assert subprocess.run(other).returncode == 7, "a second process got the lock"
    [report] = held_locks()
    assert [lock.name for lock in report.locks] == ["smoke"]
assert subprocess.run(other).returncode == 0, "the lock was not given back"
user = User.objects.create_user("smoke")

@row_lock(User, pk="pk", into="user")
def rename(pk, user):
    user.first_name = "Smoke"
    user.save()

rename(pk=user.pk)
assert User.objects.get().first_name == "Smoke"
with transaction.atomic():
    with advisory_lock("inside"):
        pass
print("smoke test passed with", django_distlock.__file__)
"""


class ReleaseError(Exception):
    """What keeps the release back."""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        try:
            sdist, wheel = build(Path(folder))
            for check in (check_metadata, check_contents, check_links):
                check(sdist, wheel)
                print(f"{check.__name__.removeprefix('check_')}: as it should be", flush=True)
            check_workflows()
            for name, database in databases(Path(folder), sys.argv[1:] or list(EXTRAS)):
                print(f"{name}: {smoke(Path(folder), wheel, name, database)}", flush=True)
        except ReleaseError as error:
            print(f"release-check: {error}", file=sys.stderr)
            return 1
    print("release-check: ready")
    return 0


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Its output; ReleaseError with what it said if it fails."""
    environment = {
        key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "DJANGO_SETTINGS_MODULE")
    }
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it; from a copy of what git knows, so that no stray file gets in."""
    source = folder / "source"
    for name in run("git", "ls-files", "-z").split("\0"):
        if name and (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    run(sys.executable, "-m", "build", "--outdir", folder / "dist", source)
    [sdist] = (folder / "dist").glob("*.tar.gz")
    [wheel] = (folder / "dist").glob("*.whl")
    return sdist, wheel


def check_metadata(sdist: Path, wheel: Path) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    version = re.findall(r'^__version__ = "(.+)"', (PACKAGE / "__init__.py").read_text(), re.MULTILINE)[0]
    if f"-{version}-" not in wheel.name:
        raise ReleaseError(f"{wheel.name} is not of version {version}, which __init__.py names")
    changes = (ROOT / "CHANGELOG.md").read_text()
    if f"## [{version}]" not in changes and "## [Unreleased]" not in changes:
        raise ReleaseError(f"CHANGELOG.md has no section of version {version}, and none that is unreleased")


def check_contents(sdist: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(next(name for name in names if name.endswith("/entry_points.txt"))).decode()
    strays = {name for name in names if not re.match(r"django_distlock(-[^/]+\.dist-info)?/", name)}
    wanted = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py")}
    wanted |= {path.relative_to(ROOT).as_posix() for pattern in DATA for path in PACKAGE.rglob(pattern)}
    if strays or wanted - names:
        raise ReleaseError(f"the wheel has too much: {sorted(strays)}, or lacks {sorted(wanted - names)}")
    if plugins := {"pytest11", "opentelemetry_instrumentor"} - set(
        re.findall(r"^\[(.+)\]$", entry_points, re.MULTILINE)
    ):
        raise ReleaseError(f"the wheel registers no plug-in for {sorted(plugins)}")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    missing = {"README.md", "LICENSE", "CHANGELOG.md", "tests/conftest.py", "docs/index.md", "Makefile"} - inside
    if missing:
        raise ReleaseError(f"the sdist lacks {sorted(missing)}")


def check_links(sdist: Path, wheel: Path) -> None:
    """Links to the project's own files, in the README and the other pages at the root. Sphinx checks those of docs/."""
    pages = [*ROOT.glob("*.md"), *(ROOT / ".github").rglob("*.yml")]
    for page in pages:
        text = page.read_text()
        for name in (*FILE_LINK.findall(text), *IMAGE_LINK.findall(text)):
            if not (ROOT / name).exists():
                raise ReleaseError(f"{page.name} links to {name}, which is not there")


def check_workflows() -> None:
    """The CI workflow cannot run everywhere; what can be known without running it is checked by its linters."""
    schemas = {
        ".github/workflows/ci.yml": "vendor.github-workflows",
        ".github/ISSUE_TEMPLATE/bug.yml": "vendor.github-issue-forms",
        ".github/ISSUE_TEMPLATE/idea.yml": "vendor.github-issue-forms",
        ".github/ISSUE_TEMPLATE/config.yml": "vendor.github-issue-config",
        ".readthedocs.yaml": "vendor.readthedocs",
    }
    scripts = Path(sys.executable).parent
    for name, schema in schemas.items():
        run(scripts / "check-jsonschema", "--builtin-schema", schema, ROOT / name)
    run(scripts / "zizmor", "--offline", "--quiet", ROOT / ".github")
    print("workflows: as they should be", flush=True)


def databases(folder: Path, wanted: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """The settings of an empty database on each engine; SQLite needs no server."""
    engines = {"sqlite": "sqlite3", "postgres": "postgresql", "mariadb": "mysql"}
    for name in wanted:
        engine = engines[name]
        if name == "sqlite":
            yield name, {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "smoke.sqlite3")}
            continue
        server = load()[name]
        yield (
            name,
            {
                "ENGINE": f"django.db.backends.{engine}",
                "NAME": f"distlock_release_{os.getpid()}",
                **{key.upper(): str(server[key]) for key in ("host", "port", "user", "password")},
            },
        )


EXTRAS = {"sqlite": "", "postgres": "[postgres]", "mariadb": "[mysql]"}
DRIVER_OF = {"postgres": "psycopg", "mariadb": "mysqlclient"}
DRIVERS = {"psycopg", "mysqlclient", "redis", "django-redis", "kazoo", "opentelemetry-api"}


def smoke(folder: Path, wheel: Path, name: str, database: dict[str, object]) -> str:
    """Install the wheel into an environment that has nothing, make a project, migrate, and lock."""
    from tests.scenarios.databases import scratch_database

    home = folder / name
    run(sys.executable, "-m", "venv", home / "venv")
    python = home / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}{EXTRAS[name]}")
    installed = {line.split("==")[0].lower() for line in run(python, "-m", "pip", "freeze").splitlines()}
    if too_much := installed & DRIVERS - {DRIVER_OF.get(name)}:
        raise ReleaseError(f"the wheel for {name} brings {sorted(too_much)} along")
    run(home / "venv" / "bin" / "django-admin", "startproject", "site_", home, cwd=home)
    with (home / "site_" / "settings.py").open("a") as settings:
        settings.write(SETTINGS.replace("{database!r}", repr(database)))
    (home / "smoke.py").write_text(SMOKE)
    with scratch_database(name, str(database["NAME"])):
        run(python, "manage.py", "check", "--fail-level", "WARNING", "--database", "default", cwd=home)
        run(python, "manage.py", "migrate", "--verbosity", "0", cwd=home)
        run(python, "manage.py", "makemigrations", "--check", "--dry-run", cwd=home)
        said = run(python, "smoke.py", cwd=home).strip()
    if str(home) not in said:
        raise ReleaseError(f"the smoke test did not run from the wheel: {said}")
    return "smoke test passed"


if __name__ == "__main__":
    sys.exit(main())
