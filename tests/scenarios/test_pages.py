"""The demo's pages and views in one process: forms, answers, and which lock a request needs."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_distlock import advisory_lock
from django_distlock.leases import upkeep
from django_distlock.leases.records import named
from testproject.articles.models import Article
from testproject.orders.models import Order
from testproject.orders.views import WAYS as ORDERS
from testproject.people import PEOPLE, person
from testproject.registration.models import Account as Registered
from testproject.registration.models import Door
from testproject.registration.views import WAYS
from testproject.replay.crowd import hidden_fields
from testproject.replay.models import Replay
from testproject.scenes.models import Account
from testproject.tabs.models import LedgerEntry, Piece, pieces

if TYPE_CHECKING:
    from collections.abc import Iterator

    from testproject.replay.scene import Way

JSON = {"accept": "application/json"}
FORM = {"email": "ann@example.org", "password": "correct horse"}
ROWS = (Piece, LedgerEntry, Article, Order, Registered, Account, Replay)


@pytest.fixture(autouse=True)
def scenes(databases: None, settings: Any) -> Iterator[None]:
    settings.PAYMENT_SECONDS = 0
    Door.objects.get_or_create(pk=Door.REGISTRATION)  # as a replay does
    yield
    for lease in upkeep.held("default", of_objects=False):
        upkeep.break_lease(named("default", lease.name), lease.fence)
    for model in ROWS:
        model.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_distlock_idempotency")
    for slug in PEOPLE:
        person(slug).delete()


def be(slug: str, page: str) -> Client:
    """Log in as one of the people of the scenes, with a click."""
    client = Client()
    assert client.post(reverse("be", args=[slug]), {"next": reverse(page)}).url == reverse(page)
    return client


@pytest.mark.parametrize("way", [way.slug for way in WAYS])
def test_a_sign_up(client: Client, way: str) -> None:
    """A program gets 201 and then 409; a person gets a redirect, and then the form with its error."""
    path = f"/register/{way}/"
    first = client.post(path, FORM)
    assert (first.status_code, first.url) == (302, path)
    assert "was made for ann@example.org" in client.get(path).text
    second = client.post(path, FORM)
    assert second.status_code == 409
    assert "already registered" in second.text
    assert FORM["password"] not in second.text
    other = FORM | {"email": "bob@example.org"}
    assert client.post(path, other, headers=JSON).json()["account"] == Registered.objects.latest("pk").pk
    # two spellings are one address
    assert client.post(path, other | {"email": "Bob@Example.org"}, headers=JSON).status_code == 409
    assert client.post("/login/", FORM, headers=JSON).status_code == 200
    assert client.post("/login/", FORM | {"password": "wrong horse"}, headers=JSON).status_code == 401


@pytest.mark.parametrize("way", [way for way in WAYS if way.lock], ids=lambda way: way.slug)
def test_the_lock_of_a_sign_up(client: Client, settings: Any, way: Any) -> None:
    """Neither the form nor a bad one waits for it. Another thread holds it: this one's own would let it in again."""
    settings.DISTLOCK = settings.DISTLOCK | {"default": {"TIMEOUT": 0}}
    lock, path = advisory_lock(way.lock.format(key=FORM["email"])), f"/register/{way.slug}/"
    with ThreadPoolExecutor(1) as pool:
        lease = pool.submit(lock.acquire, timeout=5).result()
        assert client.get(path).status_code == 200
        assert client.post(path, FORM | {"password": "short"}).status_code == 400
        emails = ("ann@example.org", "ANN@example.org")
        answers = [client.post(path, FORM | {"email": email}, headers=JSON) for email in emails]
        pool.submit(lease.release).result()
    assert [answer.status_code for answer in answers] == [503, 503]
    assert int(answers[0]["Retry-After"]) >= 1
    assert not Registered.objects.exists()


@pytest.mark.parametrize("way", ORDERS, ids=lambda way: way.slug)
def test_the_same_order_twice(way: Way) -> None:
    """By a form, and by a program."""
    shop = Client(enforce_csrf_checks=True)
    form, api = reverse(f"order-{way.slug}"), reverse(f"order-api-{way.slug}")
    fields = hidden_fields(shop.get(form).text) | {"item": "teapot", "quantity": 2}
    first, second = (shop.post(form, fields) for _ in range(2))
    assert (first.url == second.url, Order.objects.count()) == ((True, 1) if way.prevents else (False, 2))
    assert ("one order" if way.prevents else "made 2 orders") in shop.get(second.url).text
    for body, statuses in (({"item": "cup", "quantity": 2}, [201, 201]), ({"item": "moon"}, [400, 400])):
        call = {"content_type": "application/json", "headers": {"Idempotency-Key": body["item"]}}
        answers = [shop.post(api, body, **call) for _ in range(2)]
        assert [answer.status_code for answer in answers] == statuses
    assert Order.objects.count() == (2 if way.prevents else 4)
    fields.pop("_idempotency_key", None)
    assert shop.post(form, fields).status_code == (400 if way.prevents else 302)


@pytest.mark.parametrize("locked", [False, True])
def test_the_second_save_of_an_article(locked: bool) -> None:
    """Without a lock it destroys the first one; with a lock it shows both."""
    article = Article.objects.create(title="A bridge opens", body="On Saturday.")
    address = reverse("articles-edit" if locked else "articles-plain", args=[article.pk])
    assert Client().get(address).url.startswith(reverse("articles"))
    clients, forms = [Client() for _ in PEOPLE], []
    for client, slug in zip(clients, PEOPLE, strict=True):
        assert client.post(reverse("be", args=[slug]), {"next": reverse("articles")}).url == reverse("articles")
        hidden = re.findall(r'<input type="hidden" name="(distlock_edit\w*)" value="([^"]*)"', client.get(address).text)
        forms.append({"title": "A bridge opens", "section": "news", "body": f"By {PEOPLE[slug]}.", **dict(hidden)})
    answers = [client.post(address, form) for client, form in zip(clients, forms, strict=True)]
    article.refresh_from_db()
    assert (article.body, answers[1].status_code) == (("By Ada.", 409) if locked else ("By Bo.", 302))
    if locked:
        assert all(f"By {person}." in answers[1].text for person in ("Ada", "Bo"))


def take(client: Client, page: str) -> dict[str, str]:
    """The header of the first lock on a page, which is taken."""
    grant = re.search(r'data-grant="([^"]+)"', client.get(reverse(page)).text)[1]
    wish = {"grant": grant, "id": "the-lease-of-a-tab"}
    answer = client.post("/distlock/leases/", wish, content_type="application/json")
    return {"Distlock-Lease": f"the-lease-of-a-tab;{answer.json()['fence']}"}


def test_the_cart_refuses_who_has_no_lock_and_writes_it_down() -> None:
    ada, bo, change = be("ada", "cart"), be("bo", "cart"), reverse("cart-change")
    asked = {"item": "Cup", "tab": "ABC"}
    assert ada.post(change, asked).status_code == 423
    header = take(ada, "cart")
    assert ada.post(change, asked, headers=header).status_code == 204
    assert bo.post(change, asked, headers=header).status_code == 423  # the lock of one cart opens no other
    ada.post("/distlock/leases/the-lease-of-a-tab/release/")
    assert ada.post(change, asked, headers=header).status_code == 423
    state = ada.get(reverse("cart-state")).json()
    assert state["lines"]["Cup"] == 1
    assert [entry["status"] for entry in state["ledger"]] == [423, 204, 423]
    assert state["ledger"][0]["fence"] == state["ledger"][1]["fence"] is not None
    assert bo.get(reverse("cart-state")).json()["lines"]["Cup"] == 0
    assert Client().get(reverse("cart-state")).status_code == 401


def test_a_piece_moves_in_the_hand_that_has_it() -> None:
    ada, bo = be("ada", "board"), be("bo", "board")
    first, second = (reverse("board-move", args=[piece.pk]) for piece in pieces()[:2])
    header, to = take(ada, "board"), {"column": 2, "row": 1}
    assert bo.post(first, to).status_code == 423
    assert ada.post(second, to, headers=header).status_code == 423
    assert ada.post(first, to, headers=header).status_code == 204
    assert ada.post(first, {"column": 99, "row": 1}, headers=header).status_code == 400
    state = bo.get(reverse("board-state")).json()
    assert (state["pieces"][0]["column"], state["pieces"][0]["holder"]) == (2, "Ada")
    assert [(move["by"], move["asked"]) for move in state["moves"]] == [("Ada", "Tower to B1")]
