"""What all private servers have in common: how the data directory is made, how it starts, how one knows it answers."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.support.services.process import ServicesError, account, run_as, server_environment

if TYPE_CHECKING:
    from collections.abc import Mapping

Server = dict[str, Any]
"""host, port, user, password, name: what a client needs to connect."""


class Engine:
    program: ClassVar[str]  # the server itself
    needs: ClassVar[Mapping[str, str]]  # every program used -> the Debian package that brings it
    runs_as: ClassVar[str]  # the account, when we are root
    stop_signal: ClassVar[int] = signal.SIGTERM  # ends in order, without waiting for clients
    abort_signal: ClassVar[int] = signal.SIGKILL  # ends at once; the data is going to be removed
    ready_within: ClassVar[float] = 60.0

    def __init__(self, name: str, directory: Path, servers: Mapping[str, Server]) -> None:
        self.name = name
        self.directory = directory
        self.servers = servers
        self.server = servers[name]
        self.account = account(self.runs_as)

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @classmethod
    def missing(cls) -> dict[str, str]:
        """Programs that are not installed, with the package of each."""
        return {program: package for program, package in cls.needs.items() if find_program(program) is None}

    def create(self) -> None:
        """Make the data directory.  Nothing to do for an engine without one."""

    def configure(self) -> None:
        """Write the files that name ports or passwords; before every start."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def version(self) -> str:
        """Ask the server over its port, as a client would; ServicesError if it does not answer."""
        raise NotImplementedError

    def prepare(self) -> None:
        """What must stand in a server that answers; after every start, so it changes nothing the second time."""

    def run(self, *command: str, text: str = "", wait: float = 60, **environment: str) -> str:
        """Run a client or a set-up program as the server's account; its output, or ServicesError with what it said."""
        try:
            done = subprocess.run(
                command, input=text, env=server_environment(environment), cwd=self.directory, capture_output=True,
                text=True, timeout=wait, **run_as(self.account),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ServicesError(f"{self.name}: {Path(command[0]).name} gave no answer within {wait:g} s") from None
        if done.returncode:
            raise ServicesError(f"{self.name}: {Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()}")
        return done.stdout.strip()

    def make_directory(self, name: str) -> None:
        """A directory in the engine's own that its account may write to; it may be there already."""
        path = self.directory / name
        path.mkdir(mode=0o700, exist_ok=True)
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)

    def ask(self, text: str) -> str:
        """Say something in clear over the server's port; what it answers until it hangs up."""
        try:
            with socket.create_connection((self.server["host"], self.server["port"]), timeout=5) as connection:
                connection.sendall(text.encode())
                said = b""
                while data := connection.recv(65536):
                    said += data
        except OSError as error:
            raise ServicesError(f"{self.name}: {error}") from None
        return said.decode(errors="replace")

    def write_secret(self, name: str, text: str) -> Path:
        """A file in the engine's directory that only its account may read."""
        path = self.directory / name
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        if self.account:
            os.chown(path, self.account.pw_uid, self.account.pw_gid)
        return path


def find_program(name: str) -> str | None:
    """The program's path; Debian keeps PostgreSQL's own programs apart, one directory per major version."""
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    newest = sorted(versions, key=lambda path: int(path.parent.name), reverse=True)
    path = os.pathsep.join([*map(str, newest), os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin"])
    return shutil.which(name, path=path)


def program_path(name: str) -> str:
    found = find_program(name)
    if found is None:
        package = next((engine.needs[name] for engine in Engine.__subclasses__() if name in engine.needs), name)
        raise ServicesError(f"{name} is not installed (Debian package {package}): run `make services`")
    return found
