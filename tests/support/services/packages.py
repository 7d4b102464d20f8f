"""Install by apt, as root, whatever of these is missing.

    python -m tests.support.services.packages [venv] [servers] [mysqlclient] [browser] [gettext]

`venv`: for a Debian Python that cannot make virtualenvs.  `servers`: the database servers, unless DISTLOCK_SERVICES
names some that run already.  `mysqlclient`: what it takes to compile that driver.  `browser`: Chromium, Firefox
and WebKit with the programs that drive them, for the tests of pages and the screenshots, npm for the accessibility
engine, and nginx, which stands between a browser and a stream of events.
`gettext`: the programs that gather and compile the translations.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.services import is_external, mysql
from tests.support.services.engine import find_program
from tests.support.services.engines import chosen
from tests.support.services.process import ServicesError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

POLICY = Path("/usr/sbin/policy-rc.d")
POLICY_ASIDE = POLICY.with_name("policy-rc.d.before-distlock")


def missing(wanted: Sequence[str]) -> set[str]:
    """The Debian packages that are wanted and not there."""
    found: dict[str, object] = {}
    if "venv" in wanted:
        found["python3-venv"] = _imports("ensurepip")
    if "servers" in wanted and not is_external():
        found |= {package: None for engine in chosen().values() for package in engine.missing().values()}
    if "mysqlclient" in wanted and not _imports("MySQLdb"):
        found |= {
            "gcc": shutil.which("gcc"),
            "libc6-dev": Path("/usr/include/stdio.h").exists(),
            "python3-dev": Path(sysconfig.get_path("include"), "Python.h").exists(),
            "pkg-config": shutil.which("pkg-config"),
            "libmariadb-dev": shutil.which("mariadb_config"),
        }
    if "browser" in wanted:
        # one that has a Chrome of its own needs neither
        chrome = shutil.which("google-chrome")
        found |= {
            "chromium": chrome or shutil.which("chromium"),
            "chromium-driver": chrome or shutil.which("chromedriver"),
            "npm": shutil.which("npm"),
            "firefox-esr": shutil.which("firefox-esr"),
            "webkit2gtk-driver": shutil.which("WebKitWebDriver"),
            "xvfb": shutil.which("xvfb-run"),
            "xauth": shutil.which("xauth"),
            "dbus": shutil.which("dbus-run-session"),
            "nginx-light": find_program("nginx"),
            "fonts-dejavu-core": Path("/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf").exists(),
        }
    if "gettext" in wanted:
        found["gettext"] = shutil.which("msgfmt")
    return {package for package, present in found.items() if not present}


def install(packages: Collection[str]) -> None:
    """apt-get install, with nothing started: the tests run servers of their own."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServicesError(
            f"missing, by their Debian names: {' '.join(sorted(packages))}\n"
            "As root on Debian or Ubuntu the same command installs them.  "
            "Database servers may also come as containers: make services COMPOSE=mariadb"
        )
    print(f"installing {' '.join(sorted(packages))}", file=sys.stderr, flush=True)
    # not in Debian's stable distribution
    wanted = {"debootstrap" if package == mysql.PACKAGE else package for package in packages}
    with _no_service_starts():
        _apt_get("update", "--quiet=2")
        _apt_get("install", "--quiet=2", "--yes", "--no-install-recommends", *sorted(wanted))
    if mysql.PACKAGE in packages:
        mysql.unpack()


def _apt_get(*arguments: str) -> None:
    """Silent unless it fails: what a test run prints last, and all it prints, is about tests."""
    done = subprocess.run(
        ["apt-get", "-o", "DPkg::Lock::Timeout=300", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=900,
    )
    if done.returncode:
        raise ServicesError(f"apt-get {arguments[0]} failed:\n{(done.stderr + done.stdout)[-3000:].strip()}")


@contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian packages ask policy-rc.d whether to start their service; 101 means no.  What stood there comes back."""
    if POLICY.exists() and not POLICY_ASIDE.exists():
        POLICY.rename(POLICY_ASIDE)
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        if POLICY_ASIDE.exists():
            POLICY_ASIDE.replace(POLICY)
        else:
            POLICY.unlink()


def _imports(module: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0


if __name__ == "__main__":
    try:
        if packages := missing(sys.argv[1:]):
            install(packages)
    except ServicesError as error:
        sys.exit(f"services: {error}")
