"""Real servers: four processes, many visitors at one article, and a writer that knows no locks. No write is lost."""

from __future__ import annotations

import http.client
import re
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import pytest
from django.contrib.sessions.models import Session
from django.db import connections
from django.db.models import Value
from django.db.models.functions import Concat

from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article
from testproject.replay.server import Server
from tests.editing.people import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES, VISITORS, SAVES = 4, 8, 2
BODY = re.compile(r"<textarea[^>]*name=\"body\"[^>]*>\n?(.*?)</textarea>", re.DOTALL)


class Case(NamedTuple):
    """A database as the server process has it."""

    alias: str
    engine: str
    atomic: str
    isolation: str = ""


CASES = {
    "sqlite-atomic": Case("default", "sqlite", "1"),
    "postgres-repeatable": Case("postgres", "postgres", "0", "repeatable read"),
    "mariadb-atomic-repeatable": Case("mariadb", "mariadb", "1", "repeatable read"),
}
pytestmark = [pytest.mark.long, pytest.mark.tier2]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def article(case: Case, databases: None) -> Iterator[Article]:
    made = Article(title="A bridge opens", body="")
    made.save(using=case.alias)
    yield made
    for model in (Session, Article):
        model.objects.using(case.alias).all().delete()
    EditLeaseRow.rows.using(case.alias).all().delete()


@pytest.fixture
def server(case: Case, article: Article, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    environment = {
        "DB": case.engine,
        "DISTLOCK_DEMO_DB": str(connections[case.alias].settings_dict["NAME"]),
        "DISTLOCK_ATOMIC_REQUESTS": case.atomic,
        "DISTLOCK_TEST_ISOLATION": case.isolation,
        "DJANGO_SETTINGS_MODULE": "tests.editing.served_settings",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Server(workers=PROCESSES, threads=8) as running:
        yield running


class Visitor:
    """A browser without an account."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookies: dict[str, str] = {}

    def send(self, method: str, path: str, **data: Any) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        headers = {"Cookie": cookies, "Content-Type": "application/x-www-form-urlencoded"}
        try:
            connection.request(method, path, urlencode(data), headers)
            response = connection.getresponse()
            for name, value in response.getheaders():
                if name.lower() == "set-cookie":
                    cookie, _, rest = value.partition("=")
                    self.cookies[cookie] = rest.partition(";")[0]
            return response.status, response.read().decode()
        finally:
            connection.close()

    def add(self, path: str, token: str) -> bool:
        """Open the form, and save it with one word more."""
        status, page = self.send("GET", path)
        assert status == 200, page[:2000]
        fields = {name: unescape(value) for name, value in HIDDEN.findall(page)}
        fields["csrfmiddlewaretoken"] = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', page)[0]
        body = unescape(BODY.findall(page)[0])
        status, page = self.send("POST", path, title="A bridge opens", body=f"{body} {token}".strip(), **fields)
        assert status in (302, 409), page[:4000]
        return status == 302


def race(port: int, article: Article, kind: str) -> tuple[list[str], list[str]]:
    """The words that the article has in the end, and those that were saved, in order."""
    alias = article._state.db
    rows = Article.objects.using(alias).filter(pk=article.pk)
    rows.update(body="")
    written: list[str] = []

    def visit() -> None:
        visitor, done = Visitor(port), 0
        while done < SAVES:
            token = secrets.token_hex(6)
            if visitor.add(f"/{kind}/{article.pk}/", token):
                written.append(token)
                done += 1

    def write() -> None:
        """Without asking for any lock."""
        try:
            for _ in range(SAVES * 3):
                token = secrets.token_hex(6)
                rows.update(body=Concat("body", Value(f" {token}")))
                written.append(token)
                threading.Event().wait(0.02)
        finally:
            connections[alias].close()

    with ThreadPoolExecutor(VISITORS + 1) as pool:
        for task in [pool.submit(write), *(pool.submit(visit) for _ in range(VISITORS))]:
            task.result(110)
    return sorted(rows.get().body.split()), sorted(written)


def test_no_write_is_lost(case: Case, server: Server, article: Article) -> None:
    found, written = race(server.port, article, "careless")
    assert found == written
    if case.engine == "postgres":
        found, written = race(server.port, article, "plain")
        assert set(found) < set(written), "the checker cannot see a fault"
