"""The button pressed five times in a real browser, with scripts and without."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.db import connections
from pytest_django.live_server_helper import LiveServer
from selenium.webdriver import ActionChains

from testproject.orders import views
from testproject.orders.models import Order, pay
from tests.conftest import eventually
from tests.support import axe
from tests.support.browsers import ChromiumProfile, Tab, browser

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.tier2
CLICKS = 5


class Till:
    """The payment provider, which answers when the test lets it; the requests that came to the server and went."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.came: list[str] = []  # their methods
        self.went: list[None] = []

    def pay(self, key: str) -> str:
        assert self.open.wait(30), "the test never let anybody pay"
        return pay(key)

    def begins(self, environ: dict[str, Any], **kwargs: Any) -> None:
        self.came.append(environ["REQUEST_METHOD"])

    def ends(self, **kwargs: Any) -> None:
        self.went.append(None)


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any) -> Iterator[tuple[Tab, str]]:
    """One browser and one server for all tests."""
    with django_db_blocker.unblock():
        server = LiveServer("127.0.0.1:0")
        try:
            with browser("chromium") as profile:
                yield profile.tab(), server.url
        finally:
            server.stop()
            connections.close_all()


@pytest.fixture
def till(databases: None, monkeypatch: pytest.MonkeyPatch, settings: Any, live: tuple[Tab, str]) -> Iterator[Till]:
    settings.PAYMENT_SECONDS = 0
    till = Till()
    monkeypatch.setattr(views, "pay", till.pay)
    request_started.connect(till.begins)
    request_finished.connect(till.ends)
    yield till
    till.open.set()
    live[0].open("about:blank")
    # a click that still waits would find its key gone, and order
    eventually(lambda: len(till.came) == len(till.went), "requests are still under way")
    request_started.disconnect(till.begins)
    request_finished.disconnect(till.ends)
    Order.objects.all().delete()
    with connections["default"].cursor() as cursor:
        cursor.execute("DELETE FROM django_distlock_idempotency")


def placed(tab: Tab) -> int:
    """The number of the order whose page has come."""
    tab.until(lambda: tab.text("h1").startswith("Order ") and tab.text("#made"), "the page of an order did not come")
    return int(tab.run("return location.pathname").rstrip("/").rpartition("/")[2])


def submit(tab: Tab, heading: str) -> None:
    """The page that comes can be read."""
    tab.click("form button")
    tab.until(lambda: tab.text("h1") == heading, "the page did not come")
    assert not axe.faults(tab.profile)


@pytest.mark.parametrize(("way", "scripts", "made"), [("none", True, CLICKS), ("key", True, 1), ("atomic", False, 1)])
def test_five_clicks(live: tuple[Tab, str], till: Till, way: str, scripts: bool, made: int) -> None:
    tab, url = live
    assert isinstance(tab.profile, ChromiumProfile)
    driver = tab.profile.driver
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
    try:
        tab.open(f"{url}/orders/{way}/")
        clicks = ActionChains(driver, duration=0).move_to_element(tab.profile.element("form button"))
        for _ in range(CLICKS):
            clicks = clicks.click().pause(0.1)
        with ThreadPoolExecutor(1) as pool:
            pressing = pool.submit(clicks.perform)  # which waits for an answer
            try:
                eventually(lambda: till.came.count("POST") == CLICKS, f"not all clicks have arrived: {till.came}")
                assert not Order.objects.exists()
            finally:
                till.open.set()
            pressing.result()
        placed(tab)
        eventually(lambda: Order.objects.count() == made, "the orders are not what they should be")
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_waiting_page_sends_its_form_until_there_is_an_answer(live: tuple[Tab, str], till: Till) -> None:
    tab, url = live
    assert isinstance(tab.profile, ChromiumProfile)
    tab.open(f"{url}/orders/key/")
    twice = ActionChains(tab.profile.driver, duration=0).move_to_element(tab.profile.element("form button"))
    twice.click().pause(0.1).click().perform()  # the second waits for the first, then the page comes
    tab.until(lambda: tab.text("h1") == "Still working", "the page did not come")
    assert not axe.faults(tab.profile)
    came = till.came.count("POST")
    eventually(lambda: till.came.count("POST") > came, "the form was not sent again")
    till.open.set()
    placed(tab)
    assert Order.objects.count() == 1


def test_back_with_changed_data(live: tuple[Tab, str], till: Till) -> None:
    tab, url = live
    till.open.set()
    tab.open(f"{url}/orders/key/")
    tab.click("form button")
    first = placed(tab)
    tab.follow(tab.back)
    tab.type("[name=note]", "as a present")
    submit(tab, "Already saved")
    assert (Order.objects.count(), tab.text("form button")) == (1, "Submit as new")
    tab.click("form button")
    second = placed(tab)
    assert list(Order.objects.order_by("pk").values_list("pk", "note")) == [(first, ""), (second, "as a present")]


def log_in(tab: Tab, url: str) -> None:
    tab.open(f"{url}/admin/login/")
    for name, text in (("username", "smith"), ("password", "pass")):
        tab.type(f"[name={name}]", text)
    tab.follow(lambda: tab.click("[type=submit]"))


def test_the_same_user_logs_in_again_in_another_tab(live: tuple[Tab, str], till: Till) -> None:
    """Naive code: Django's page "CSRF verification failed", and the typed text is gone."""
    tab, url = live
    till.open.set()
    user = User.objects.create_superuser("smith", password="pass")
    try:
        log_in(tab, url)
        tab.open(f"{url}/orders/key/")
        tab.type("[name=note]", "as a present")
        other = tab.profile.tab(f"{url}/admin/")
        other.follow(lambda: other.click("#logout-form button"))
        log_in(other, url)
        other.close()
        submit(tab, "Not saved yet")
        assert not Order.objects.exists()
        tab.click("form button")
        pk = placed(tab)
        assert list(Order.objects.values_list("pk", "note")) == [(pk, "as a present")]
    finally:
        user.delete()
