"""Real servers: four processes, many users at one article, and a writer that knows no locks. No write is lost."""

from __future__ import annotations

import http.client
import json
import re
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from html import unescape
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import connections
from django.db.models import Value
from django.db.models.functions import Concat
from django.utils import timezone

from django_distlock.models import EditLeaseRow
from testproject.articles.models import Article
from testproject.replay.server import Server
from tests.editing.people import HIDDEN
from tests.support.sizes import LONG

if TYPE_CHECKING:
    from collections.abc import Iterator

PROCESSES, USERS, SAVES = 4, 8, 20 if LONG else 2
CLAIMS = 50
TOKEN = re.compile(r'name="csrfmiddlewaretoken" value="(\w+)"')
BODY = re.compile(r"<textarea[^>]*name=\"body\"[^>]*>\n?(.*?)</textarea>", re.DOTALL)


class Case(NamedTuple):
    """A database as the server process has it."""

    alias: str
    engine: str
    atomic: str = "0"
    isolation: str = ""


CASES = {
    "sqlite": Case("default", "sqlite"),
    "sqlite-atomic": Case("default", "sqlite", "1"),
    "postgres-atomic": Case("postgres", "postgres", "1"),
    "postgres-repeatable": Case("postgres", "postgres", "0", "repeatable read"),
    "mariadb-atomic": Case("mariadb", "mariadb", "1"),
    "mariadb-repeatable": Case("mariadb", "mariadb", "1", "repeatable read"),
}


pytestmark = [pytest.mark.long, pytest.mark.tier2]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def server(case: Case, django_db_setup: None, django_db_blocker: Any) -> Iterator[Server]:
    environment = {
        "DB": case.engine,
        "DISTLOCK_DEMO_DB": str(connections[case.alias].settings_dict["NAME"]),
        "DISTLOCK_ATOMIC_REQUESTS": case.atomic,
        "DISTLOCK_TEST_ISOLATION": case.isolation,
        "DJANGO_SETTINGS_MODULE": "tests.editing.served_settings",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        started = Server(workers=PROCESSES, threads=8)
        running = started.__enter__()
    try:
        yield running
    finally:
        started.__exit__()
    with django_db_blocker.unblock():
        connections.close_all()


class Browser:
    """A user with a session, and a connection of its own."""

    def __init__(self, port: int, session: str) -> None:
        self.port = port
        self.cookies = {"sessionid": session}
        self.tab = secrets.token_hex(16)

    def send(self, method: str, path: str, body: str = "", **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            given = {"Cookie": "; ".join(f"{name}={value}" for name, value in self.cookies.items()), **headers}
            connection.request(method, path, body, given)
            response = connection.getresponse()
            for name, value in response.getheaders():
                if name.lower() == "set-cookie" and value.startswith("csrftoken="):
                    self.cookies["csrftoken"] = value.partition("=")[2].partition(";")[0]
            return response.status, response.read().decode()
        finally:
            connection.close()

    def open(self, path: str) -> tuple[dict[str, str], str]:
        """The hidden fields, and the text."""
        status, page = self.send("GET", path)
        assert status == 200, page[:2000]
        fields = {name: unescape(value) for name, value in HIDDEN.findall(page)}
        return {**fields, "csrfmiddlewaretoken": TOKEN.findall(page)[0]}, unescape(BODY.findall(page)[0])

    def save(self, path: str, fields: dict[str, str], body: str) -> int:
        data = urlencode({"title": "A bridge opens", "body": body, **fields})
        status, page = self.send("POST", path, data, **{"Content-Type": "application/x-www-form-urlencoded"})
        assert status in (302, 409), page[:4000]
        return status

    def claim(self, fields: dict[str, str]) -> dict[str, Any]:
        item = {"verb": "claim", "grant": fields["distlock_edit"], "lease": secrets.token_hex(16)}
        body = json.dumps({"tab": self.tab, "items": [item]})
        headers = {"Content-Type": "application/json", "X-CSRFToken": fields["csrfmiddlewaretoken"]}
        status, text = self.send("POST", "/distlock/editing/beat/", body, **headers)
        assert status == 200, text[:2000]
        found: dict[str, Any] = json.loads(text)["items"][0]
        return found


@pytest.fixture
def browsers(case: Case, server: Server, databases: None) -> Iterator[list[Browser]]:
    users = [User(username=f"user{number}", password="!") for number in range(USERS)]
    User.objects.using(case.alias).bulk_create(users)
    yield [Browser(server.port, _session(case.alias, user)) for user in User.objects.using(case.alias).all()]
    for model in (Session, User, Article):
        model.objects.using(case.alias).all().delete()
    EditLeaseRow.rows.using(case.alias).all().delete()


def _session(alias: str, user: User) -> str:
    key = secrets.token_hex(16)
    data = {
        "_auth_user_id": str(user.pk),
        "_auth_user_backend": "django.contrib.auth.backends.ModelBackend",
        "_auth_user_hash": user.get_session_auth_hash(),
    }
    expiry = timezone.now() + timedelta(days=1)
    Session.objects.using(alias).create(session_key=key, session_data=SessionStore().encode(data), expire_date=expiry)
    return key


@pytest.fixture
def article(case: Case, databases: None) -> Article:
    made = Article(title="A bridge opens", body="")
    made.save(using=case.alias)
    return made


@pytest.mark.parametrize("kind", ["edit", "careless", "function"] if LONG else ["careless"])
def test_no_write_is_lost(case: Case, browsers: list[Browser], article: Article, kind: str) -> None:
    found, written = race(case, browsers, article, kind)
    assert found == written
    assert len(written) > USERS


def test_without_a_lock_writes_are_lost(case: Case, browsers: list[Browser], article: Article) -> None:
    """The checker can see a fault."""
    found, written = race(case, browsers, article, "plain")
    assert set(found) < set(written)


def race(case: Case, browsers: list[Browser], article: Article, kind: str) -> tuple[list[str], list[str]]:
    """The words that the article has in the end, and those that were saved, in order."""
    path = f"/{kind}/{article.pk}/"
    written: list[str] = []
    stop = threading.Event()

    def user(browser: Browser) -> None:
        done = 0
        for _ in range(SAVES * 30):
            fields, body = browser.open(path)
            token = secrets.token_hex(6)
            if browser.save(path, fields, f"{body} {token}".strip()) == 302:
                written.append(token)
                done += 1
                if done == SAVES:
                    return
            if stop.wait(secrets.randbelow(20) / 1000):
                return

    def stranger() -> None:
        """Writes without asking for any lock."""
        try:
            for _ in range(SAVES * 3):
                token = secrets.token_hex(6)
                rows = Article.objects.using(case.alias).filter(pk=article.pk)
                rows.update(body=Concat("body", Value(f" {token}")))
                written.append(token)
                stop.wait(0.02)
        finally:
            connections[case.alias].close()

    with ThreadPoolExecutor(USERS + 1) as pool:
        tasks = [pool.submit(user, browser) for browser in browsers] + [pool.submit(stranger)]
        for task in tasks:
            task.result(110)
    found = Article.objects.using(case.alias).get(pk=article.pk).body.split()
    return sorted(found), sorted(written)


def test_one_of_fifty_claims_wins(browsers: list[Browser], article: Article) -> None:
    crowd = [(browser, browser.open(f"/edit/{article.pk}/")[0]) for browser in browsers]
    barrier = threading.Barrier(CLAIMS)

    def claim(number: int) -> tuple[str, str]:
        browser, fields = crowd[number % len(crowd)]
        barrier.wait(30)
        # another tab of the same user may take the lease: so each user has one claim that counts
        return browser.cookies["sessionid"], browser.claim(fields)["state"]

    with ThreadPoolExecutor(CLAIMS) as pool:
        answers = [task.result(60) for task in [pool.submit(claim, number) for number in range(CLAIMS)]]
    assert {state for _, state in answers} == {"held", "busy"}
    assert len({who for who, state in answers if state == "held"}) == 1
