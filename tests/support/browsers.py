"""Chromium, Firefox and WebKit behind one interface: a profile, its tabs, and what a person does in them.

Firefox is driven by its own Marionette protocol, because Debian has no geckodriver. WebKit is GTK's MiniBrowser on a
virtual screen.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from selenium import webdriver
from selenium.webdriver.common.by import By

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BROWSERS = ("chromium", "firefox", "webkit")
PATIENCE = 20.0  # seconds
MINIBROWSER = "/usr/lib/*/webkit2gtk-4.1/MiniBrowser"


class Profile:
    """One browser with cookies and storage of its own. Subclasses know how to speak to it."""

    #: The process whose end takes the whole browser along.
    process: psutil.Process

    def tab(self, url: str = "") -> Tab:
        """A new tab; it is the one in front."""
        tab = Tab(self, self.new_tab())
        if url:
            tab.open(url)
        return tab

    def new_tab(self) -> str:
        raise NotImplementedError

    def switch(self, handle: str) -> None:
        raise NotImplementedError

    def get(self, url: str) -> None:
        raise NotImplementedError

    def run(self, script: str, *arguments: Any) -> Any:
        raise NotImplementedError

    def element(self, selector: str) -> Any:
        raise NotImplementedError

    def back(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def png(self) -> bytes:
        raise NotImplementedError

    def processes(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def kill(self) -> None:
        """`kill -9` of the browser with all its processes."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """To all processes of the browser. SIGSTOP and SIGCONT are the sleep of a laptop."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Tab:
    """A tab. Each call brings it to the front first."""

    def __init__(self, profile: Profile, handle: str) -> None:
        self.profile, self.handle = profile, handle

    def open(self, url: str) -> None:
        self._front()
        self.profile.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        self._front()
        return self.profile.run(script, *arguments)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent.trim() ?? ''", selector))

    def value(self, selector: str) -> Any:
        return self.run("return document.querySelector(arguments[0])?.value", selector)

    def type(self, selector: str, text: str) -> None:
        """Real keys into a field, after what is there."""
        self._front()
        self.profile.element(selector).send_keys(text)

    def click(self, selector: str) -> None:
        self._front()
        self.profile.element(selector).click()

    def follow(self, act: Callable[[], Any]) -> None:
        """Do something that leads to another document, and wait until that is there."""
        self.run("window.distlockHere = true")
        act()
        self.until(
            lambda: self.run("return !window.distlockHere && document.readyState === 'complete'"), "no other page came"
        )

    def reload(self) -> None:
        self.follow(lambda: self.run("location.reload()"))

    def back(self) -> None:
        self._front()
        self.profile.back()

    def close(self) -> None:
        """Close the tab as a person does; another one must be open."""
        self._front()
        self.profile.close()

    def png(self) -> bytes:
        self._front()
        return self.profile.png()

    def until(self, condition: Callable[[], Any], message: str, patience: float = PATIENCE) -> Any:
        end = time.monotonic() + patience
        while True:
            with suppress(Exception):  # the page is just being replaced
                if found := condition():
                    return found
            assert time.monotonic() < end, message
            time.sleep(0.05)

    def _front(self) -> None:
        self.profile.switch(self.handle)


class WebDriverProfile(Profile):
    """A browser that speaks WebDriver."""

    def __init__(self, driver: Any, process: psutil.Process) -> None:
        self.driver, self.process = driver, process
        self.front: str | None = driver.current_window_handle
        self.blank: str | None = self.front

    def new_tab(self) -> str:
        if self.blank is not None:  # the one that the browser has started with
            handle, self.blank = self.blank, None
            return handle
        if self.front is None:  # the one in front was closed
            self.driver.switch_to.window(self.driver.window_handles[0])
        self.driver.switch_to.new_window("tab")
        self.front = str(self.driver.current_window_handle)
        return self.front

    def switch(self, handle: str) -> None:
        if handle != self.front:
            self.driver.switch_to.window(handle)
            self.front = handle

    def get(self, url: str) -> None:
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def element(self, selector: str) -> Any:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def back(self) -> None:
        self.driver.back()

    def close(self) -> None:
        self.driver.close()
        self.front = None

    def png(self) -> bytes:
        return bytes(self.driver.get_screenshot_as_png())


class FirefoxProfile(Profile):
    """Firefox by Marionette."""

    def __init__(self, client: Any, process: psutil.Process) -> None:
        self.client, self.process = client, process
        self.blank: str | None = client.current_window_handle

    def new_tab(self) -> str:
        if self.blank is not None:
            handle, self.blank = self.blank, None
            return handle
        self.client.switch_to_window(self.client.window_handles[0])  # the one in front may be closed
        return str(self.client.open(type="tab", focus=True)["handle"])

    def switch(self, handle: str) -> None:
        self.client.switch_to_window(handle)

    def get(self, url: str) -> None:
        self.client.navigate(url)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.client.execute_script(script, script_args=list(arguments), sandbox=None)

    def element(self, selector: str) -> Any:
        return self.client.find_element("css selector", selector)

    def back(self) -> None:
        self.client.go_back()

    def close(self) -> None:
        self.client.close()

    def png(self) -> bytes:
        return base64.b64decode(self.client.screenshot(full=False))


@contextmanager
def browser(name: str) -> Iterator[Profile]:
    """A browser with a new profile; it is gone afterwards, with all its processes."""
    with {"chromium": _chromium, "firefox": _firefox, "webkit": _webkit}[name]() as profile:
        yield profile


@contextmanager
def _chromium() -> Iterator[Profile]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-extensions", "--no-first-run", "--window-size=1280,900"),
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options, service)
    try:
        with _ended(psutil.Process(service.process.pid)):
            yield WebDriverProfile(driver, psutil.Process(service.process.pid).children()[0])
    finally:
        _quietly(service.stop)


@contextmanager
def _firefox() -> Iterator[Profile]:
    from marionette_driver.marionette import Marionette

    port = _free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory, "user.js").write_text(
            f'user_pref("marionette.port", {port});\n'
            'user_pref("browser.shell.checkDefaultBrowser", false);\n'
            'user_pref("browser.tabs.warnOnClose", false);\n'
            'user_pref("dom.disable_beforeunload", true);\n'
        )
        command = ["firefox-esr", "--headless", "--no-remote", "--marionette", "--width", "1280", "--height", "900"]
        with _started([*command, "--profile", directory], port) as process:
            client = Marionette(host="127.0.0.1", port=port, startup_timeout=PATIENCE)
            client.start_session()
            client.timeout.script = PATIENCE
            yield FirefoxProfile(client, process)


@contextmanager
def _webkit() -> Iterator[Profile]:
    port = _free_port()
    [binary, *_] = sorted(Path("/").glob(MINIBROWSER.lstrip("/")))
    command = ["xvfb-run", "-a", "-s", "-screen 0 1280x900x24", "dbus-run-session", "--", "WebKitWebDriver"]
    options = webdriver.WebKitGTKOptions()
    options.binary_location = str(binary)
    options.add_argument("--automation")
    with _started([*command, f"--port={port}", "--host=127.0.0.1"], port, GDK_BACKEND="x11") as process:
        driver = webdriver.Remote(f"http://127.0.0.1:{port}", options=options)
        [mini] = [each for each in process.children(recursive=True) if each.name() == "MiniBrowser"]
        yield WebDriverProfile(driver, mini)


@contextmanager
def _started(command: list[str], port: int, **environment: str) -> Iterator[psutil.Process]:
    """A program that listens on ``port``."""
    started = subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with ExitStack() as stack:
        stack.callback(started.wait)
        stack.callback(os.killpg, started.pid, signal.SIGKILL)
        stack.enter_context(_ended(psutil.Process(started.pid)))
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert started.poll() is None, f"{command[0]} has ended"
                assert time.monotonic() < end, f"{command[0]} does not answer"
                time.sleep(0.1)
        yield psutil.Process(started.pid)


@contextmanager
def _ended(process: psutil.Process) -> Iterator[None]:
    """No process of the browser stays, stopped ones included."""
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            for each in (*process.children(recursive=True), process):
                with suppress(psutil.NoSuchProcess):
                    each.kill()


def _quietly(call: Callable[[], Any]) -> None:
    with suppress(Exception):
        call()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
