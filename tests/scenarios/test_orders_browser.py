"""The button pressed five times, in a real browser, with scripts and without."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import User
from django.core.signals import request_finished, request_started
from django.db import connections
from pytest_django.live_server_helper import LiveServer

from django_distlock.idempotency.http import responses
from testproject.orders import payments, views
from testproject.orders.models import Order
from tests.conftest import eventually
from tests.support.browser import Page, chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.long, pytest.mark.tier2]  # to set up
CLICKS = 5


class Till:
    """The payment provider, which answers when the test lets it; how many orders have arrived at the server, and how
    many of them want to be paid."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.arrived = self.paying = self.under_way = 0
        self.lock = threading.Lock()

    def pay(self, key: str) -> str:
        self.paying += 1
        assert self.open.wait(30), "the test never let anybody pay"
        return payments.pay(key)

    def begins(self, environ: dict[str, Any], **kwargs: Any) -> None:
        with self.lock:
            self.under_way += 1
            self.arrived += environ["REQUEST_METHOD"] == "POST"

    def ends(self, **kwargs: Any) -> None:
        with self.lock:
            self.under_way -= 1


@pytest.fixture(scope="module")
def live(django_db_setup: None, django_db_blocker: Any) -> Iterator[Page]:
    """One browser and one server for all tests."""
    with django_db_blocker.unblock():
        server = LiveServer("127.0.0.1:0")
        try:
            with chromium() as driver:
                yield Page(driver, server.url)
        finally:
            server.stop()
            connections.close_all()


@pytest.fixture
def till(databases: None, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Till]:
    settings.PAYMENT_SECONDS = 0
    till = Till()
    monkeypatch.setattr(views, "pay", till.pay)
    request_started.connect(till.begins)
    request_finished.connect(till.ends)
    yield till
    request_started.disconnect(till.begins)
    request_finished.disconnect(till.ends)


@pytest.fixture
def page(till: Till, live: Page) -> Iterator[Page]:
    yield live
    till.open.set()
    live.scripts(True)
    live.dark(False)
    live.driver.get("about:blank")
    live.driver.delete_all_cookies()
    # a click that still waits would find its key gone, and order
    eventually(lambda: not till.under_way, "requests are still under way")
    Order.objects.all().delete()
    with connections["default"].cursor() as cursor:
        cursor.execute("DELETE FROM django_distlock_idempotency")


def fill(page: Page, **fields: object) -> None:
    for name, value in fields.items():
        field = page.find(f"[name={name}]")
        if field.tag_name == "input":
            field.clear()
        field.send_keys(str(value))


def send_by_script(page: Page, times: int) -> None:
    """All at once; ``window.led`` will say where each was led to."""
    page.run(
        "const form = document.querySelector('form');"
        "const send = () => fetch(form.action, {method: 'POST', body: new FormData(form)});"
        "Promise.all(Array.from({length: arguments[0]}, send)).then(all => { window.led = all.map(one => one.url) })",
        times,
    )


def placed(page: Page) -> int:
    """The number of the order whose page has come, with the words about it."""
    page.until(lambda: page.text("h1").startswith("Order ") and page.all("#made"), "the page of an order did not come")
    pk = int(page.driver.current_url.rstrip("/").rpartition("/")[2])
    assert page.text(".message") == f"Thank you. Order {pk} was placed: {Order.objects.get(pk=pk)}."
    return pk


def test_scripts_can_be_switched_off(page: Page) -> None:
    for on in (True, False):
        page.scripts(on)
        page.driver.get(f"data:text/html,<title>off</title><p>{on}</p><script>document.title = 'on'</script>")
        page.until(lambda on=on: page.text("p") == str(on), "the page did not come")
        assert page.driver.title == ("on" if on else "off")


@pytest.mark.parametrize(
    ("way", "scripts", "made"),
    [("none", True, CLICKS), ("idempotent", True, 1), ("idempotent", False, 1), ("atomic", False, 1)],
)
def test_five_clicks(page: Page, till: Till, way: str, scripts: bool, made: int) -> None:
    page.scripts(scripts)
    page.open(f"/orders/{way}/")
    fill(page, item="Kettle", quantity=2)
    page.press(times=CLICKS)
    eventually(lambda: till.arrived == CLICKS, f"{till.arrived} of {CLICKS} clicks have arrived")
    assert not Order.objects.exists()
    till.open.set()
    pk = placed(page)
    eventually(lambda: Order.objects.count() == made, "the orders are not what they should be")
    if made == 1:
        assert page.text("#made") == "This form has made one order."
    page.open(f"/orders/{pk}/")
    assert not page.all(".message")  # said once


def test_a_script_that_sends_the_form_five_times(page: Page, till: Till) -> None:
    page.open("/orders/idempotent/")
    send_by_script(page, CLICKS)
    eventually(lambda: till.arrived == CLICKS, f"{till.arrived} of {CLICKS} requests have arrived")
    till.open.set()
    led = page.until(lambda: page.run("return window.led"), "the answers did not come")
    assert led == [f"{page.url}/orders/{Order.objects.get().pk}/"] * CLICKS


def test_back_with_changed_data(page: Page, till: Till) -> None:
    till.open.set()
    page.open("/orders/idempotent/")
    page.press()
    first = placed(page)
    # back, and the same once more: the same order
    page.follow(page.driver.back)
    page.press()
    assert placed(page) == first
    page.follow(page.driver.back)
    fill(page, quantity=3, note="as a present")
    page.press()
    page.until(lambda: page.text("h1") == "Already saved", "the page did not come")
    assert Order.objects.count() == 1
    assert page.find("main a").get_attribute("href") == f"{page.url}/orders/{first}/"
    assert page.faults() == []
    page.dark(True)
    assert page.faults("color-contrast") == []
    assert page.text("form button") == "Submit as new"
    page.press(times=CLICKS)
    second = placed(page)
    made = Order.objects.order_by("pk").values_list("pk", "quantity", "note")
    assert list(made) == [(first, 1, ""), (second, 3, "as a present")]
    assert Order.objects.values("payment").distinct().count() == 2


def test_a_page_that_is_read_from_right_to_left(page: Page, till: Till, settings: Any) -> None:
    settings.LANGUAGE_CODE = "fa"
    till.open.set()
    page.open("/orders/idempotent/")
    page.press()
    placed(page)
    page.follow(page.driver.back)
    fill(page, note="as a present")
    page.press()
    page.until(lambda: page.text("h1") == "پیش‌تر ذخیره شده است", "the page did not come")
    assert page.faults() == []
    # it begins at the right, and nothing is cut
    left, right = page.run(
        "const box = document.querySelector('form button').getBoundingClientRect(),"
        " main = document.querySelector('main').getBoundingClientRect();"
        " return [box.left - main.left, main.right - box.right]"
    )
    assert right < 1 < left
    assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    if (path := os.environ.get("DISTLOCK_SCREENSHOTS")) is not None:
        page.driver.save_screenshot(f"{path}/saved_fa.png")


def test_mistakes_can_be_corrected(page: Page, till: Till) -> None:
    till.open.set()
    page.open("/orders/idempotent/")
    fill(page, quantity=9)
    page.follow(page.press)
    assert page.text(".errors") == "At most 3 of these in one order."
    assert page.find("[name=quantity]").get_attribute("aria-describedby") == page.find(".errorlist").get_attribute("id")
    assert not Order.objects.exists()
    fill(page, quantity=2)
    page.press()
    assert Order.objects.get(pk=placed(page)).quantity == 2


def test_the_waiting_page_goes_on_by_itself(
    page: Page, till: Till, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISTLOCK_IDEMPOTENCY = {"FORM_WAIT": 0.05}
    monkeypatch.setattr(responses, "REFRESH", 1)
    page.open("/orders/idempotent/")
    send_by_script(page, 1)
    eventually(lambda: till.paying, "nobody wants to pay")
    page.press()
    page.until(lambda: page.text("h1") == "Still working", "the page did not come")
    page.run("window.stop()")  # or it would go while it is looked at
    assert page.faults() == []
    page.dark(True)
    assert page.faults("color-contrast") == []
    page.scripts(False)
    page.driver.refresh()  # the click once more
    page.until(lambda: "_idempotency_wait=" in page.driver.current_url, "the page does not go on")
    assert (page.text("h1"), till.arrived) == ("Still working", 3)
    till.open.set()
    placed(page)
    assert Order.objects.count() == 1


@pytest.fixture
def strict(page: Page, settings: Any) -> Iterator[Page]:
    """The same browser on a server with a content security policy."""
    settings.MIDDLEWARE = ["tests.scenarios.strict.strict_policy", *settings.MIDDLEWARE]
    server = LiveServer("127.0.0.1:0")
    user = User.objects.create_superuser("smith", password="pass")
    try:
        yield Page(page.driver, server.url)
    finally:
        page.driver.get("about:blank")
        server.stop()
        user.delete()


@pytest.mark.parametrize("policy", [False, True])
def test_a_log_in_in_another_tab(page: Page, strict: Page, till: Till, policy: bool) -> None:
    """Naive code: Django's page "CSRF verification failed", and the typed text is gone."""
    till.open.set()
    if policy:
        page = strict
    page.open("/orders/idempotent/")
    fill(page, item="Kettle", quantity=2, note="as a present")
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.open("/admin/login/")
    fill(page, username="smith", password="pass")
    page.follow(lambda: page.press("[type=submit]"))
    page.until(lambda: page.text("h1") == "Site administration", "the log-in did not work")
    page.driver.close()
    page.driver.switch_to.window(first)
    page.press()
    page.until(lambda: page.text("h1") == "Not saved yet", "the page did not come")
    assert not Order.objects.exists()
    if not policy:
        assert page.faults() == []
        page.dark(True)
        assert page.faults("color-contrast") == []
    assert page.text("form button") == "Save it now"
    if (path := os.environ.get("DISTLOCK_SCREENSHOTS")) is not None:
        page.driver.save_screenshot(f"{path}/session_changed_{policy}.png")
    page.press(times=CLICKS)
    pk = placed(page)
    assert list(Order.objects.values_list("pk", "quantity", "note")) == [(pk, 2, "as a present")]


def test_axe_finds_nothing_serious(page: Page, till: Till) -> None:
    till.open.set()
    faults = {}
    page.open("/orders/atomic/")
    fill(page, quantity=9)
    page.follow(page.press)
    faults["mistake"] = page.faults()
    page.open("/orders/none/")
    page.press()
    placed(page)
    page.dark(True)
    faults["order"] = page.faults()
    page.open("/orders/")
    faults["home"] = page.faults()
    assert not {name: found for name, found in faults.items() if found}
