from __future__ import annotations

import secrets
import subprocess
import sys
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.urls import NoReverseMatch, reverse

from testproject.replay import MANAGE, ReplayError, command_line
from testproject.replay.scene import scenes
from testproject.replay.server import Server

USER = "demo"
# The other pages of the demo and the replay that fills each; small ones, so that serving begins within half a minute.
OTHER_SCENES = {
    "wallet": ("--pairs=20", "--transfers=100"),
    "inventory": ("--stock=20",),
    "orders": ("--clicks=10",),
    "scheduler": (),
}
BY_HAND = {
    "orders": "press the button five times, with and without a key",
    "articles": "open one article in two browsers, as Ada and as Bo",
    "cart": "open it in three tabs, and as the same person in another browser",
    "board": "move pieces in two browsers, as Ada and as Bo",
    "workers": "eight workers count, with and without a mutex",
}


class Command(BaseCommand):
    help = "Prepare the demo's database, replay the registration race, say what happened, then serve the demo."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--no-serve", action="store_true", help="stop after the replay; exit status as of `replay`")
        parser.add_argument("--identical", default="200", help="sign-ups with one address at once; default: 200")
        parser.add_argument("--distinct", default="60", help="sign-ups with as many addresses; default: 60")
        parser.add_argument("--port", type=int, help="default: 8000, or a free one if that is taken")

    def handle(self, *args: Any, **options: Any) -> None:
        call_command("migrate", run_syncdb=True, interactive=False, verbosity=0)
        if apps.is_installed("testproject.articles"):
            call_command("loaddata", "articles", verbosity=0)
        self.stdout.write("Replaying the registration race against a real server:")
        arguments = [f"--{name}={options[name]}" for name in ("identical", "distinct")]
        try:
            call_command("replay", "registration", *arguments, stdout=self.stdout, stderr=self.stderr)
        except CommandError as error:
            if options["no_serve"]:
                raise
            self.stderr.write(self.style.ERROR(f"The replay did not go as promised:\n{error}"))
        if options["no_serve"]:
            return
        self.fill_other_scenes()
        try:
            self.serve((options["port"],) if options["port"] else (8000, 0), reset_superuser())
        except ReplayError as error:
            raise CommandError(str(error)) from error

    def fill_other_scenes(self) -> None:
        """Replay the other scenes, so that no page of the demo is empty.

        Each runs as its own command: what its workers write about lost leases belongs to its story, not to this one.
        """
        self.stdout.write("\nFilling the other pages:")
        for name, arguments in OTHER_SCENES.items():
            if name not in scenes():  # it shows a part of the package that has been taken out
                continue
            self.stdout.write(f"{name.title()} ...")
            self.stdout.flush()
            done = subprocess.run([sys.executable, MANAGE, "replay", name, *arguments], capture_output=True, text=True)
            if done.returncode:
                shows = command_line(f"replay {name}")
                self.stderr.write(f"{name.title()} did not go as promised; `{shows}` shows it:\n{done.stderr}")

    def serve(self, ports: tuple[int, ...], password: str) -> None:
        with Server(ports=ports) as server:
            url = f"http://127.0.0.1:{server.port}"
            self.stdout.write(f"\nDemo:     {url}/")
            for name, hint in BY_HAND.items():
                with suppress(NoReverseMatch):
                    self.stdout.write(f"{name.title() + ':':<10}{url}{reverse(name)}   {hint}")
            self.stdout.write(f"Admin:    {url}/admin/   user {USER}, password {password}")
            self.stdout.write("Control-C stops the server.")
            self.stdout.flush()
            try:
                server.process.wait()
            except KeyboardInterrupt:
                self.stdout.write("\nStopped.")
                return
            raise CommandError("The server ended by itself; its log above says why.")


def reset_superuser() -> str:
    """Give the demo's superuser a fresh random password, and return it: it is printed here and stored nowhere."""
    password = secrets.token_urlsafe(9)
    user, _ = get_user_model().objects.get_or_create(username=USER, defaults={"is_staff": True, "is_superuser": True})
    user.set_password(password)
    user.save()
    return password
