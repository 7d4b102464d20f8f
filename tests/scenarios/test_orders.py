"""The double submission: its pages and API in one process, its replay over real HTTP, and what that calls a problem."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from testproject.orders.clicks import Answer, HiddenFields
from testproject.orders.models import Order, OrderRun
from testproject.orders.records import Phase, Replay, WayResult, problems, story, table
from testproject.orders.ways import WAYS, Way
from tests.support.sizes import LONG

from .databases import manage
from .test_pages import Page

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.http import HttpResponse

pytestmark = pytest.mark.tier2

CALL = {"item": "cup", "quantity": 2}
GUARDED = [way for way in WAYS if way.prevents]
every_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.slug)
guarded = pytest.mark.parametrize("way", GUARDED, ids=lambda way: way.slug)


@pytest.fixture(autouse=True)
def quick(settings: Any) -> None:
    settings.PAYMENT_SECONDS = 0


@pytest.fixture
def shop(databases: None) -> Iterator[Client]:
    yield Client(enforce_csrf_checks=True)
    Order.objects.all().delete()
    OrderRun.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_distlock_idempotency")


def opened(shop: Client, way: Way, **filled: object) -> dict[str, object]:
    """The fields of the form as a browser has them, filled in."""
    return HiddenFields.of(shop.get(reverse(way.url_name)).text) | {"item": "teapot", "quantity": 2} | filled


def send(shop: Client, way: Way, fields: dict[str, object]) -> HttpResponse:
    return shop.post(reverse(way.url_name), fields)


def call(shop: Client, way: Way, key: str | None, body: object = CALL) -> HttpResponse:
    headers = {} if key is None else {"Idempotency-Key": key}
    return shop.post(reverse(way.api_name), body, content_type="application/json", headers=headers)


@every_way
def test_the_same_form_twice(shop: Client, way: Way) -> None:
    fields = opened(shop, way)
    first, second = send(shop, way, fields), send(shop, way, fields)
    assert [first.status_code, second.status_code] == [302, 302]
    assert (first.url == second.url, Order.objects.count()) == ((True, 1) if way.prevents else (False, 2))
    page = shop.get(second.url).text
    assert "Thank you. Order" in page
    assert ("one order" if way.prevents else "made 2 orders") in page


@every_way
def test_two_forms_are_two_orders(shop: Client, way: Way) -> None:
    for _ in range(2):
        send(shop, way, opened(shop, way))
    assert Order.objects.values("payment").distinct().count() == 2
    assert "This form has made one order" in shop.get(reverse("order", args=[Order.objects.first().pk])).text


@every_way
def test_a_mistake_uses_nothing_up(shop: Client, way: Way) -> None:
    fields = opened(shop, way, quantity=4)
    wrong = send(shop, way, fields)
    assert (wrong.status_code, "At most 3" in wrong.text) == (400, True)
    # by the page that tells of the mistake, and by the one before it
    for page in (HiddenFields.of(wrong.text) | {"item": "teapot"}, fields):
        assert send(shop, way, page | {"quantity": 3}).status_code == 302
    assert Order.objects.count() == 2


@guarded
def test_a_form_without_its_key_is_refused(shop: Client, way: Way) -> None:
    fields = opened(shop, way)
    del fields["_idempotency_key"]
    assert send(shop, way, fields).status_code == 400
    assert not Order.objects.exists()


@every_way
def test_the_same_call_twice(shop: Client, way: Way) -> None:
    first, second = call(shop, way, "a"), call(shop, way, "a")
    assert [first.status_code, second.status_code] == [201, 201]
    assert first["Location"] == reverse("order", args=[first.json()["order"]])
    assert (first.json() == second.json(), Order.objects.count()) == ((True, 1) if way.prevents else (False, 2))
    assert second.has_header("Idempotency-Replayed") is way.prevents
    other = call(shop, way, "a", CALL | {"quantity": 3})
    assert other.status_code == (422 if way.prevents else 201)


@every_way
@pytest.mark.parametrize("body", ["{", "[]", '{"item": "moon"}', '{"item": "teapot", "quantity": 4}'])
def test_a_bad_call(shop: Client, way: Way, body: str) -> None:
    assert call(shop, way, "a", body).status_code == 400
    assert call(shop, way, "a").status_code == 201  # its key is not used up
    assert call(shop, way, None).status_code == (400 if way.prevents else 201)


def test_the_pages_show_what_happened(shop: Client) -> None:
    page = shop.get("/orders/").text
    assert "There are none yet" in page
    assert "manage.py replay_orders" in page
    assert 'href="/orders/"' in shop.get("/").text
    fields = opened(shop, WAYS[0])
    for _ in range(5):
        send(shop, WAYS[0], fields)
    result = replay(way(GUARDED[0]), way(WAYS[0], orders=50, first=50)).as_json() | {"problems": ["none: <broken>"]}
    OrderRun.objects.create(engine="sqlite", result=result)
    shown = shop.get("/orders/")
    assert '<strong class="alarm">5</strong>' in shown.text
    assert "none: &lt;broken&gt;" in shown.text
    page = Page.of(shown)
    assert page.rows["No key"] == ["No key", "form", "50", "50", "49", "50", "1 x 302, 49 x 302 replayed", "0", "1.0"]
    assert "50 (49 too many)" in page.svg_texts
    assert "Idempotency key: 1; No key: 50 (49 too many)." in page.descriptions[0]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["sqlite", "postgres", "mariadb"] if LONG else ["sqlite"])
def test_the_replay(engine: str, migrated: Callable[[str], dict[str, str]]) -> None:
    environment = migrated(engine) | {"DISTLOCK_DEMO_PAYMENT_SECONDS": "0.3"}
    done = manage("replay_orders", "--clicks=20", "--json", environment=environment)
    assert done.returncode == 0, done.stderr
    ways = {way["slug"]: way["phases"] for way in json.loads(done.stdout)["ways"]}
    # the fault is real: without it the rest would prove nothing
    assert [(phase["orders"], phase["payments"]) for phase in ways["none"]] == [(20, 20)] * 2
    for slug in ("idempotent", "atomic"):
        for phase in ways[slug]:
            assert (phase["orders"], phase["payments"], phase["first"], phase["wrong"]) == (1, 1, 1, 0)
            assert phase["first"] + phase["replayed"] + phase["busy"] == 20


def way(of: Way, **figures: Any) -> WayResult:
    """A result as it should be of a guarded way, but for these figures."""
    good: dict[str, Any] = {"kind": "form", "requests": 50, "orders": 1, "first": 1, "replayed": 49, "busy": 0}
    more = {"statuses": {"302": 1, "302 replayed": 49}, "wrong": 0, "errors": [], "seconds": 1.0}
    given = {**good, **more, **figures}
    phase = Phase(**{"payments": given["orders"], **given})
    return WayResult(slug=of.slug, title=of.title, prevents=of.prevents, phases=[phase])


def replay(*ways: WayResult) -> Replay:
    known = {"engine": "sqlite", "engine_name": "SQLite", "engine_version": "3.40"}
    return Replay(**known, server_processes=4, payment_seconds=1.5, ways=list(ways))


BAD = "50 requests made {} orders with {} payments, and {} of them ran the view."


@pytest.mark.parametrize(
    ("result", "found"),
    [
        (way(GUARDED[0]), []),
        (way(GUARDED[0], orders=2), ["idempotent, form: " + BAD.format(2, 2, 1)]),
        (way(GUARDED[0], payments=2), ["idempotent, form: " + BAD.format(1, 2, 1)]),
        (way(GUARDED[0], first=2), ["idempotent, form: " + BAD.format(1, 1, 2)]),
        (way(GUARDED[0], orders=0, first=0), ["idempotent, form: " + BAD.format(0, 0, 0)]),
        (way(GUARDED[0], wrong=1, errors=["500"]), ["idempotent, form: 1 of 50 answers are wrong: 500."]),
        (way(WAYS[0]), ["none, form: 50 requests made 1 orders; the fault was not shown."]),
        (way(WAYS[0], orders=50, first=50), []),
    ],
)
def test_the_verdict(result: WayResult, found: list[str]) -> None:
    assert list(problems([result])) == found


def test_the_answers_are_told_apart() -> None:
    made = {"/orders/1/": "pay-a"}
    kinds = [(302, "/orders/1/", False), (201, "/orders/1/", True), (409, "", False), (302, "/orders/9/", False)]
    kinds += [(500, "", False), (0, "", False)]
    answers = [
        Answer(status=status, started=0, seconds=1, location=location, replayed=replayed)
        for status, location, replayed in kinds
    ]
    phase = Phase.of("form", answers, made)
    assert (phase.first, phase.replayed, phase.busy, phase.wrong) == (1, 1, 1, 3)
    assert phase.errors == ["0", "302", "500"]
    assert phase.statuses == {"0": 1, "201 replayed": 1, "302": 2, "409": 1, "500": 1}


def test_the_figures_for_a_terminal() -> None:
    ways = [way(WAYS[0], orders=50, first=50), way(GUARDED[0])]
    assert table(ways).splitlines()[1].split()[:6] == ["none", "form", "50", "50", "49", "50"]
    assert list(story(ways)) == [
        "No key: 50 times the same form made 50 orders.",
        "Idempotency key: 50 times the same form made 1 order.",
    ]


def test_the_demo_names_the_address() -> None:
    from testproject.registration.management.commands.demo import scenes

    assert re.search(r"^Orders: +http://127\.0\.0\.1:1/orders/   press the button", scenes("http://127.0.0.1:1/"), re.M)


def test_there_is_an_unknown_way(databases: None) -> None:
    with pytest.raises(Exception, match="unknown way twice"):
        call_command("replay_orders", ways="twice")
