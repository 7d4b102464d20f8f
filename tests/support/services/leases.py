"""The servers of the lease engines: Redis and ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tests.support.services.engine import Engine, find_program, program_path
from tests.support.services.process import ServicesError

if TYPE_CHECKING:
    from collections.abc import Mapping

JAVA_JARS = Path("/usr/share/java")


class Redis(Engine):
    program = "redis-server"
    needs: ClassVar = {"redis-server": "redis-server"}
    runs_as = "redis"

    def create(self) -> None:
        self.make_directory("data")

    def configure(self) -> None:
        settings = {
            "bind": self.server["host"],
            "port": self.server["port"],
            "requirepass": self.server["password"],
            "dir": self.data,
            "save": '""',
            "appendonly": "yes",  # fencing tokens are to rise through a restart
            "appendfsync": "no",
            "maxmemory-policy": "noeviction",
            "enable-debug-command": "local",
        }
        self.write_secret("redis.conf", "".join(f"{key} {value}\n" for key, value in settings.items()))

    def command(self) -> list[str]:
        return [program_path("redis-server"), str(self.directory / "redis.conf")]

    def version(self) -> str:
        said = self.ask(f"AUTH {self.server['password']}\r\nINFO server\r\nQUIT\r\n")
        found = [line for line in said.splitlines() if line.startswith("redis_version:")]
        if not found:
            raise ServicesError(f"{self.name} said {said[:200]!r}")
        return found[0].partition(":")[2]


class ZooKeeper(Engine):
    program = "java"
    needs: ClassVar = {"java": "zookeeper"}
    runs_as = "zookeeper"
    ours: Mapping[str, object] = {}  # more lines of its configuration

    @classmethod
    def missing(cls) -> dict[str, str]:
        present = find_program("java") is not None and JAVA_JARS.joinpath("zookeeper.jar").exists()
        return {} if present else {"java": "zookeeper"}

    def create(self) -> None:
        self.make_directory("data")

    def configure(self) -> None:
        settings = {
            "clientPortAddress": self.server["host"],
            "clientPort": self.server["port"],
            "dataDir": self.data,
            # Sessions from 0.4 s (two ticks) on, so that a test of a session's end need not take long.
            "tickTime": 200,
            "maxSessionTimeout": 60_000,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
            "extendedTypesEnabled": "true",
            **self.ours,
        }
        self.write_secret("zoo.cfg", "".join(f"{key}={value}\n" for key, value in settings.items()))

    def command(self) -> list[str]:
        options = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no")
        options += ("-Dznode.container.checkIntervalMs=1000",)  # a minute, if nothing is said
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        jars = str(JAVA_JARS / "zookeeper.jar")
        return [program_path("java"), *options, "-cp", jars, main, str(self.directory / "zoo.cfg")]

    def version(self) -> str:
        said = self.ask("srvr")
        if not said.startswith("Zookeeper version: "):
            raise ServicesError(f"{self.name} said {said[:200]!r}")
        return said.partition(": ")[2].partition("-")[0]
