"""Oracle's MySQL in MariaDB's place: ``make test MYSQL=1``.

Debian has it in its unstable distribution only. Where no ``mysqld`` is installed, a tree of that distribution is
unpacked into a directory of its own: about 600 MB, and nothing of it is installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import ClassVar

from tests.support.services.databases import MariaDB
from tests.support.services.engine import find_program, program_path
from tests.support.services.process import ServicesError, private_directory

PACKAGE = "mysql-server-core"
HOME = "distlock-mysql"
# The libraries of the tree, and its loader: those of this machine are older.
WRAPPER = """#!/bin/sh
exec {tree}/lib64/ld-linux-x86-64.so.2 \\
  --library-path {tree}/usr/lib/x86_64-linux-gnu:{tree}/usr/lib/mysql/private \\
  {tree}/usr/sbin/mysqld "$@" --basedir={tree}/usr --plugin-dir={tree}/usr/lib/mysql/plugin/
"""


class MySQL(MariaDB):
    program = "mysqld"
    needs: ClassVar = {"mysqld": PACKAGE, "mariadb": "mariadb-client"}
    # "mysqlx" would listen on another port; "secure-file-priv" is by default a directory that a package makes
    ours: ClassVar = {"mysqlx": "OFF", "secure-file-priv": "NULL"}

    @classmethod
    def missing(cls) -> dict[str, str]:
        missing = super().missing()
        missing.pop("mysqld", None)
        return missing if program() else {**missing, "mysqld": PACKAGE}

    def create(self) -> None:
        self.install(self.path(), "--initialize-insecure")

    def path(self) -> str:
        if (found := program()) is None:
            raise ServicesError("there is no mysqld of MySQL: run `make services MYSQL=1`")
        return found


def program() -> str | None:
    """Where the server is. MariaDB's package has a ``mysqld`` too, which is a link to its own."""
    found = find_program("mysqld")
    if found is not None and Path(found).resolve().name == "mysqld":
        return found
    unpacked = Path(tempfile.gettempdir(), HOME, "mysqld")
    return str(unpacked) if unpacked.exists() else None


def unpack() -> None:
    """By debootstrap, as root on Debian."""
    if os.geteuid() != 0 or not Path("/etc/debian_version").exists() or os.uname().machine != "x86_64":
        raise ServicesError("MYSQL=1 needs a mysqld (8.0 or newer) on the PATH, or root on Debian to unpack one")
    home = private_directory(HOME)
    tree = home / "tree"
    shutil.rmtree(tree, ignore_errors=True)
    command = [program_path("debootstrap"), "--variant=minbase", f"--include={PACKAGE}", "sid", str(tree)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200)
    if done.returncode:
        raise ServicesError(f"debootstrap failed:\n{(done.stderr + done.stdout)[-3000:].strip()}")
    wrapper = home / "mysqld"  # last: it says that the tree is complete
    wrapper.write_text(WRAPPER.format(tree=tree))
    wrapper.chmod(0o755)
