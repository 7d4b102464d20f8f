"""The demo's pages and views in one process: forms, answers, and which lock a sign-up takes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import pytest
from django.urls import reverse

from django_distlock import advisory_lock
from testproject.registration import views
from testproject.registration.models import Account, ReplayRun
from testproject.registration.ways import WAYS

if TYPE_CHECKING:
    from django.http import HttpResponse
    from django.test import Client

    from testproject.registration.forms import SignUp

    from .conftest import Replayed

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.tier2]

EMAIL = "ann@example.org"
FORM = {"email": EMAIL, "password": "correct horse"}
JSON = {"accept": "application/json"}
LOCKED = [way for way in WAYS if way.lock_name]


def sign_up(client: Client, slug: str, form: dict[str, str] | None = None, **headers: str) -> HttpResponse:
    return client.post(f"/register/{slug}/", form or FORM, headers=headers)


@pytest.mark.parametrize("way", [way.slug for way in WAYS])
def test_a_program_gets_201_and_then_409(client: Client, way: str) -> None:
    first, second = sign_up(client, way, **JSON), sign_up(client, way, **JSON)
    assert (first.status_code, second.status_code) == (201, 409)
    assert Account.objects.get().pk == first.json()["account"]


@pytest.mark.parametrize("way", [way.slug for way in WAYS])
def test_a_person_gets_a_redirect_and_then_the_form_with_its_error(client: Client, way: str) -> None:
    first = sign_up(client, way)
    assert (first.status_code, first.url) == (302, reverse(f"register-{way}"))
    assert f"was made for {EMAIL}" in client.get(first.url).text
    second = sign_up(client, way)
    assert second.status_code == 409
    assert "already registered" in second.text
    assert FORM["password"] not in second.text


@pytest.mark.parametrize("way", [way.slug for way in WAYS])
def test_two_spellings_are_one_address(client: Client, way: str) -> None:
    assert sign_up(client, way, **JSON).status_code == 201
    assert sign_up(client, way, FORM | {"email": EMAIL.title()}, **JSON).status_code == 409


@pytest.mark.parametrize("spelling", [EMAIL, EMAIL.upper()])
@pytest.mark.parametrize("way", LOCKED, ids=lambda way: way.slug)
def test_the_check_and_the_insert_run_under_the_lock_that_the_page_names(
    client: Client, monkeypatch: pytest.MonkeyPatch, way: views.Way, spelling: str
) -> None:
    name = way.lock_name.format(key=EMAIL)
    free_inside = []

    def register(form: SignUp) -> Account:
        # In another thread, because this one may enter its own lock again (R2).
        with ThreadPoolExecutor(1) as pool:
            free_inside.append(pool.submit(is_free, name).result())
        return Account(pk=1, email=form.email)

    monkeypatch.setattr(views, "register", register)
    assert sign_up(client, way.slug, FORM | {"email": spelling}, **JSON).status_code == 201
    assert free_inside == [False]
    assert is_free(name)


def is_free(name: str) -> bool:
    lease = advisory_lock(name).try_acquire(timeout=0)
    if lease is None:
        return False
    lease.release()
    return True


@pytest.mark.parametrize("way", LOCKED, ids=lambda way: way.slug)
def test_neither_the_form_nor_a_bad_one_waits_for_the_lock(client: Client, way: views.Way) -> None:
    with busy(way.lock_name.format(key=EMAIL)):
        assert client.get(f"/register/{way.slug}/").status_code == 200
        bad = sign_up(client, way.slug, FORM | {"password": "short"}, **JSON)
        assert (bad.status_code, list(bad.json()["errors"])) == (400, ["password"])
        assert sign_up(client, way.slug, FORM | {"password": "short"}).status_code == 400


@pytest.mark.parametrize("way", LOCKED, ids=lambda way: way.slug)
def test_a_busy_lock_answers_503_and_when_to_come_back(client: Client, settings, way: views.Way) -> None:
    settings.DISTLOCK = settings.DISTLOCK | {"default": {"TIMEOUT": 0}}
    with busy(way.lock_name.format(key=EMAIL)):
        answer = sign_up(client, way.slug, **JSON)
    assert answer.status_code == 503
    assert int(answer["Retry-After"]) >= 1
    assert not Account.objects.exists()


class busy:
    """Another thread holds the lock for the length of the block: this thread's own would let it in again (R2)."""

    def __init__(self, name: str) -> None:
        self.name, self.pool = name, ThreadPoolExecutor(1)

    def __enter__(self) -> None:
        self.lease = self.pool.submit(advisory_lock(self.name).acquire, timeout=5).result()

    def __exit__(self, *exc_info: object) -> None:
        self.pool.submit(self.lease.release).result()
        self.pool.shutdown()


def test_log_in(client: Client) -> None:
    sign_up(client, "none")
    assert client.get("/login/").status_code == 200
    assert client.post("/login/", FORM, headers=JSON).status_code == 200
    for wrong in ({"email": "nobody@example.org"}, {"password": "wrong horse"}):
        assert client.post("/login/", FORM | wrong, headers=JSON).status_code == 401
        assert "is wrong" in client.post("/login/", FORM | wrong).text
    assert client.post("/login/", FORM, follow=True).redirect_chain == [("/login/", 302)]


def test_the_home_page_without_a_replay_says_how_to_make_one(client: Client) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert "manage.py replay" in page.text
    for way in WAYS:
        assert f'href="/register/{way.slug}/"' in page.text


def test_the_home_page_shows_the_figures_that_were_measured(client: Client, replayed: Replayed) -> None:
    _, result = replayed("sqlite", atomic=False)
    ReplayRun.objects.create(engine=result["engine"], atomic_requests=result["atomic_requests"], result=result)
    page = Page.of(client.get("/"))
    for way in result["ways"]:
        assert [way["title"], "200 same address", str(way["identical"]["accounts"])] == page.rows[way["title"]][:3]
    duplicates = result["ways"][0]["identical"]["duplicates"]
    assert any(f"({duplicates} too many)" in text for text in page.svg_texts)
    # A screen reader gets each plot's figures as words.
    assert len(page.descriptions) == 2
    assert f"No lock: {duplicates + 1} ({duplicates} too many)" in page.descriptions[0]
    assert page.scopes == {"col", "rowgroup"}


class Page(HTMLParser):
    """What the tests look for on the home page."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, list[str]] = {}
        self.svg_texts: list[str] = []
        self.descriptions: list[str] = []
        self.scopes: set[str] = set()
        self._row: list[str] = []
        self._text = ""

    @classmethod
    def of(cls, response: HttpResponse) -> Page:
        page = cls()
        page.feed(response.text)
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("tr", "td", "th", "text", "desc"):
            self._text = ""
        if tag == "tr":
            self._row = []
        if tag == "th":
            self.scopes.add(dict(attrs).get("scope") or "missing")

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        text = " ".join(self._text.split())
        if tag in ("td", "th"):
            self._row.append(text)
        elif tag == "tr" and self._row[0] not in self.rows:
            self.rows[self._row[0]] = self._row
        elif tag == "text":
            self.svg_texts.append(text)
        elif tag == "desc":
            self.descriptions.append(text)
