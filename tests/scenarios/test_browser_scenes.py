"""The scenes of browser locks in one process: what their protected views do. Browsers: tests/browserlocks/scenes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client
from django.urls import reverse

from django_distlock.browser.store import break_lease, held
from testproject.board.models import Move, Piece, pieces
from testproject.cart.models import Entry, Line
from testproject.people import PEOPLE, person

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def scenes(databases: None) -> Iterator[None]:
    yield
    for lease in held("default"):
        break_lease("default", lease.name, lease.fence)
    for model in (Move, Piece, Entry, Line):
        model.objects.all().delete()
    for slug in PEOPLE:
        person(slug).delete()


def be(slug: str, page: str = "cart") -> Client:
    client = Client()
    answer = client.post(reverse("be", args=[slug]), {"next": reverse(page)})
    assert answer.url == reverse(page)
    return client


def take(client: Client, page: str, grant: str = "data-grant") -> dict[str, str]:
    """The header of the first lock on a page, which is taken."""
    found = re.search(rf'{grant}="([^"]+)"', client.get(reverse(page)).text)
    assert found
    wish = {"grant": found[1], "id": "the-lease-of-a-tab"}
    answer = client.post("/distlock/leases/", wish, content_type="application/json")
    assert answer.status_code == 201, answer.content
    return {"Distlock-Lease": f"the-lease-of-a-tab;{answer.json()['fence']}"}


def quantity(slug: str) -> int:
    return sum(Line.objects.filter(user=person(slug)).values_list("quantity", flat=True))


def test_only_the_two_people_and_only_by_post() -> None:
    assert Client().post("/be/eve/").status_code == 404
    assert Client().get("/be/ada/").status_code == 405
    assert Client().post("/be/ada/", {"next": "https://evil.example/"}).url == "/"
    for page in ("cart", "board", "workers"):
        assert Client().get(reverse(page)).status_code == 200


def test_the_cart_refuses_who_has_no_lock_and_writes_it_down() -> None:
    ada = be("ada")
    asked: dict[str, Any] = {"item": "Cup", "tab": "ABC"}
    assert ada.post(reverse("cart-change"), asked).status_code == 423
    header = take(ada, "cart")
    assert ada.post(reverse("cart-change"), asked, headers=header).status_code == 204
    ada.post("/distlock/leases/the-lease-of-a-tab/release/")
    assert ada.post(reverse("cart-change"), asked, headers=header).status_code == 423
    assert quantity("ada") == 1
    ledger = ada.get(reverse("cart-state")).json()["ledger"]
    assert [entry["status"] for entry in ledger] == [423, 204, 423]
    assert ledger[2]["fence"] is None
    assert ledger[0]["fence"] == ledger[1]["fence"]


def test_the_lock_of_one_cart_opens_no_other() -> None:
    ada, bo = be("ada"), be("bo")
    header = take(ada, "cart")
    assert bo.post(reverse("cart-change"), {"item": "Cup"}, headers=header).status_code == 423
    assert quantity("bo") == 0
    assert bo.get(reverse("cart-state")).json()["lines"]["Cup"] == 0
    assert Client().get(reverse("cart-state")).status_code == 401


def test_a_piece_moves_in_the_hand_that_has_it() -> None:
    ada, bo = be("ada", "board"), be("bo", "board")
    first, second = pieces()[:2]
    header = take(ada, "board")
    to = {"column": 2, "row": 1}
    assert bo.post(reverse("board-move", args=[first.pk]), to).status_code == 423
    assert ada.post(reverse("board-move", args=[second.pk]), to, headers=header).status_code == 423
    assert ada.post(reverse("board-move", args=[first.pk]), to, headers=header).status_code == 204
    for wrong in ({"column": 99, "row": 1}, {"column": "x", "row": 1}, {}):
        assert ada.post(reverse("board-move", args=[first.pk]), wrong, headers=header).status_code == 400
    state = bo.get(reverse("board-state")).json()
    assert (state["pieces"][0]["column"], state["pieces"][0]["holder"]) == (2, "Ada")
    assert [(move["by"], move["to"]) for move in state["moves"]] == [("Ada", "B1")]


def test_the_page_of_the_workers_is_isolated() -> None:
    answer = Client().get(reverse("workers"))
    assert answer["Cross-Origin-Embedder-Policy"] == "require-corp"
    assert answer["Cross-Origin-Opener-Policy"] == "same-origin"


def test_the_demo_names_the_addresses() -> None:
    from testproject.registration.management.commands.demo import scenes

    text = scenes("http://127.0.0.1:1/")
    for name in ("Cart", "Board", "Workers"):
        assert f"{name}:" in text
