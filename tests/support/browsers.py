"""Chromium, Firefox and WebKit behind one interface: a profile, its tabs, and what a person does in them.

Firefox is driven by its own Marionette protocol, because Debian has no geckodriver. WebKit is GTK's MiniBrowser on a
virtual screen.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import websocket
from django.conf import settings
from django.db import connections
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.client_config import ClientConfig
from selenium.webdriver.remote.remote_connection import RemoteConnection

from tests.support.services.process import free_port, wait_stopped, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BROWSERS = ("chromium", "firefox", "webkit")
PATIENCE = 20.0  # seconds
STARTING = 60.0  # until a browser that is started has answered
# A name of this machine that is not "localhost": a page there is in no secure context. WebKit does not know it.
OTHER_NAME = "edit.example"
MINIBROWSER = "/usr/lib/*/webkit*gtk-[46].[01]/MiniBrowser"


class Profile:
    """One browser with cookies and storage of its own.

    Subclasses know how to speak to it: they have ``new_tab``, ``switch``, ``get``, ``run``, ``element``, ``back``,
    ``close`` and ``execute_async_script`` (of a script that calls its last argument with its answer) as well.
    """

    #: The process whose end takes the whole browser along.
    process: psutil.Process

    def tab(self, url: str = "") -> Tab:
        """A new tab; it is the one in front."""
        tab = Tab(self, self.new_tab())
        if url:
            tab.open(url)
        return tab

    def crash_and_restore(self, tab: Tab) -> None:
        """The process of a page dies without a word; the tab comes back as after "Restore"."""
        raise NotImplementedError

    def send_signal(self, number: int) -> None:
        """To all processes of the browser. SIGSTOP and SIGCONT are the sleep of a laptop."""
        processes = [self.process, *self.process.children(recursive=True)]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        if number == signal.SIGSTOP:
            wait_stopped([process.pid for process in processes])


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

    def until(self, condition: Callable[[], Any], message: str | Callable[[], str], patience: float = PATIENCE) -> Any:
        end = time.monotonic() + patience
        while True:
            with suppress(Exception):  # the page is just being replaced
                if found := condition():
                    return found
            assert time.monotonic() < end, message if isinstance(message, str) else message()
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

    def execute_async_script(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_async_script(script, *arguments)


class ChromiumProfile(WebDriverProfile):
    """Chromium, whose own protocol says what WebDriver cannot."""

    def __init__(self, driver: Any, process: psutil.Process, stack: ExitStack) -> None:
        super().__init__(driver, process)
        self.stack = stack

    def offline(self, tab: Tab, on: bool) -> None:
        """The network of a page ends, or comes back."""
        self.switch(tab.handle)
        self.driver.execute_cdp_cmd("Network.enable", {})
        conditions = {"offline": on, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.driver.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)

    def dark(self, on: bool) -> None:
        """Show pages in dark colours."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def crash_and_restore(self, tab: Tab) -> None:
        """The driver gives the tab up when its page crashes. Another driver goes on with it."""
        self.switch(tab.handle)
        with suppress(WebDriverException):
            self.driver.execute_cdp_cmd("Page.crash", {})
        address = self.driver.capabilities["goog:chromeOptions"]["debuggerAddress"]
        connection = websocket.create_connection(f"ws://{address}/devtools/page/{tab.handle}", suppress_origin=True)
        connection.send(json.dumps({"id": 1, "method": "Page.reload"}))
        connection.recv()
        connection.close()
        options = webdriver.ChromeOptions()
        options.debugger_address = address
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        driver = webdriver.Chrome(options, service)
        self.stack.callback(_quietly, service.stop)
        tab.profile = WebDriverProfile(driver, self.process)
        self.front = None


class WebKitProfile(WebDriverProfile):
    """WebKit, whose driver can do less."""

    def crash_and_restore(self, tab: Tab) -> None:
        """The driver ends with a page that crashes. So the page goes without a word, and its storage comes back in
        another tab: what a restored one has."""
        address = tab.run("return location.href")
        stored = tab.run("return Object.entries(sessionStorage)")
        tab.run("window.fetch = () => new Promise(() => {})")
        tab.close()
        tab.handle = self.new_tab()
        tab.open(address.partition("?")[0].rsplit("/", 2)[0] + "/")
        tab.run("for (const [key, value] of arguments[0]) sessionStorage.setItem(key, value)", stored)
        tab.open(address)


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
        """Marionette does nothing, without a word, as long as its process has not heard that there is a page before: on
        a busy machine that comes after the page is complete."""
        end = time.monotonic() + PATIENCE
        mark = secrets.token_hex(4)
        self.run("window.distlockBack = arguments[0]", mark)
        while self.run("return window.distlockBack") == mark:
            assert time.monotonic() < end, "there is no page before"
            self.client.go_back()

    def close(self) -> None:
        self.client.close()

    def execute_async_script(self, script: str, *arguments: Any) -> Any:
        return self.client.execute_async_script(script, script_args=list(arguments), sandbox=None)

    def crash_and_restore(self, tab: Tab) -> None:
        self.switch(tab.handle)
        # Firefox stores the state of its tabs every 15 seconds
        with self.client.using_context("chrome"):
            process = self.client.execute_async_script(
                "const [done] = arguments;"
                'const {TabStateFlusher} = ChromeUtils.importESModule("resource:///modules/sessionstore/'
                'TabStateFlusher.sys.mjs");'
                'const {selectedBrowser} = Services.wm.getMostRecentWindow("navigator:browser").gBrowser;'
                "TabStateFlusher.flush(selectedBrowser)"
                ".then(() => done(selectedBrowser.frameLoader.remoteTab.osPid))"
            )
        psutil.Process(process).kill()
        crashed = 'Services.wm.getMostRecentWindow("navigator:browser").gBrowser.selectedTab'
        tab.until(lambda: self._inside(f'return {crashed}.hasAttribute("crashed")'), "the page has not crashed")
        self._inside(
            'ChromeUtils.importESModule("resource:///modules/sessionstore/SessionStore.sys.mjs")'
            f".SessionStore.reviveCrashedTab({crashed})"
        )

    def _inside(self, script: str) -> Any:
        """Run a script as a part of the browser."""
        with self.client.using_context("chrome"):
            return self.client.execute_script(script)


class Person:
    """A user with a browser profile, at the pages of a server."""

    def __init__(self, profile: Profile, url: str, slug: str) -> None:
        self.profile, self.url, self.slug = profile, url, slug
        self.tabs: list[Tab] = []
        self.home = profile.tab()

    def opened(self, tab: Tab, path: str) -> None:
        tab.open(self.url + path)
        self.tabs.append(tab)

    def close_tabs(self) -> None:
        for tab in self.tabs:
            with suppress(Exception):  # a test may have closed it
                tab.close()
        self.tabs.clear()


# What a folder with pages imports into its conftest. Of the package: each browser starts once for all modules.
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Chromium runs each case with the fixture ``people``, Firefox and WebKit those with the mark ``everywhere``."""
    if "people" in metafunc.fixturenames:
        everywhere = metafunc.definition.get_closest_marker("everywhere") is not None
        metafunc.parametrize("people", BROWSERS if everywhere else BROWSERS[:1], indirect=True, scope="package")


@pytest.fixture(scope="package")
def server(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """The address of a server on the test databases, behind the wire."""
    middleware = ["tests.support.wire.middleware", *settings.MIDDLEWARE]
    with django_db_blocker.unblock():
        with override_settings(MIDDLEWARE=middleware):  # read once, when the server starts
            live = LiveServer("127.0.0.1:0")
        try:
            yield live.url
        finally:
            live.stop()
            connections.close_all()


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
        f"--host-resolver-rules=MAP {OTHER_NAME} 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options, service)
    with ExitStack() as stack:
        stack.callback(_quietly, service.stop)
        stack.enter_context(_ended(psutil.Process(service.process.pid)))
        yield ChromiumProfile(driver, psutil.Process(service.process.pid).children()[0], stack)


@contextmanager
def _firefox() -> Iterator[Profile]:
    with warnings.catch_warnings():  # it uses what Python has deprecated
        warnings.simplefilter("ignore", DeprecationWarning)
        from marionette_driver.marionette import Marionette

    port = free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        Path(directory, "user.js").write_text(
            f'user_pref("marionette.port", {port});\n'
            'user_pref("browser.shell.checkDefaultBrowser", false);\n'
            'user_pref("browser.tabs.warnOnClose", false);\n'
            'user_pref("dom.disable_beforeunload", true);\n'
            f'user_pref("network.dns.localDomains", "{OTHER_NAME}");\n'
        )
        command = "firefox-esr --headless --no-remote --marionette -remote-allow-system-access --width 1280"
        with _started([*command.split(), "--height", "900", "--profile", directory], port) as process:
            client = Marionette(host="127.0.0.1", port=port, startup_timeout=STARTING)
            client.start_session()
            client.timeout.script = PATIENCE
            yield FirefoxProfile(client, process)


@contextmanager
def _webkit() -> Iterator[Profile]:
    port = free_port()
    [binary, *_] = sorted(Path("/").glob(MINIBROWSER.lstrip("/")))
    command = ["xvfb-run", "-a", "-s", "-screen 0 1280x900x24", "dbus-run-session", "--", "WebKitWebDriver"]
    options = webdriver.WebKitGTKOptions()
    options.binary_location = str(binary)
    options.add_argument("--automation")
    with _started([*command, f"--port={port}", "--host=127.0.0.1"], port, GDK_BACKEND="x11") as process:
        connection = RemoteConnection(client_config=ClientConfig(f"http://127.0.0.1:{port}"))
        driver = webdriver.Remote(connection, options=options)
        [mini] = [each for each in process.children(recursive=True) if each.name() == "MiniBrowser"]
        yield WebKitProfile(driver, mini)


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
        assert wait_until(lambda: _accepts(port), STARTING), f"{command[0]} does not answer"
        yield psutil.Process(started.pid)


def _accepts(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


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
