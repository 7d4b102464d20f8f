"""A person with a camera, for the pictures in the documentation."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from testproject.replay.server import Server
from tests.support.paths import ROOT

from .databases import demo_environment, manage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.browsers import ChromiumProfile, Tab

FOLDER = ROOT / "docs" / "_static"
LARGEST = 150_000  # bytes


class Photographer:
    """A person with a browser, logged in as ``slug`` on the page ``start``; names of pictures begin with ``prefix``."""

    def __init__(self, profile: ChromiumProfile, url: str, slug: str, start: str, prefix: str) -> None:
        self.profile, self.url, self.prefix = profile, url, prefix
        self.tab = profile.tab(f"{url}{start}")
        if slug:
            self.tab.follow(lambda: self.tab.click(f"[formaction$='/{slug}/']"))

    def open(self, path: str) -> Tab:
        self.tab.open(self.url + path)
        return self.tab

    def size(self, width: int, height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.profile.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def shot(self, width: int, height: int, top: str = "", *, dark: bool = False) -> bytes:
        """The part of the page that begins with ``top``."""
        self.profile.dark(dark)
        self.size(width, height)
        # short pages scroll as far as long ones
        self.tab.run("document.activeElement?.blur(); document.body.style.minHeight = arguments[0] ? '200vh' : ''", top)
        self.tab.run(
            "scrollTo(0, 0); if (arguments[0]) document.querySelector(arguments[0]).scrollIntoView(); scrollBy(0, -12)",
            top,
        )
        return self.tab.png()

    def both(self, name: str, width: int, height: int, top: str = "") -> None:
        """The same in light and in dark colours."""
        for dark in (False, True):
            self.save(f"{name}-{'dark' if dark else 'light'}", self.shot(width, height, top, dark=dark))
        self.profile.dark(False)

    def save(self, name: str, png: bytes) -> None:
        path = FOLDER / f"{self.prefix}-{name}.png"
        path.write_bytes(png)
        assert len(png) < LARGEST, f"{path} has {len(png)} bytes"


@contextmanager
def demo(*commands: tuple[str, ...], **environment: str) -> Iterator[str]:
    """The demo's server on a new database, after these commands; its address without a slash at the end."""
    with tempfile.TemporaryDirectory() as folder:
        environment |= {"DB": "sqlite", "DISTLOCK_DEMO_DB": str(Path(folder, "demo.sqlite3"))}
        for command in (("migrate",), *commands):
            done = manage(*command, environment=environment)
            if done.returncode:
                sys.exit(done.stderr)
        os.environ.update(demo_environment(environment))
        with Server(threads=16) as server:
            yield server.url.rstrip("/")
