"""People who save one form at the same time, over HTTP to another process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from threading import Barrier
from typing import Any
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client

from testproject.articles.models import Article
from tests.browserlocks.served import Site
from tests.editing.people import hidden, make_person

pytestmark = [pytest.mark.tier2, pytest.mark.usefixtures("databases")]
PEOPLE, ROUNDS = 6, 8


class Visitor:
    """A person with a browser that runs no script."""

    def __init__(self, name: str, port: int) -> None:
        client, token = Client(), "c" * 32
        client.force_login(make_person(name))
        cookies = {settings.SESSION_COOKIE_NAME: client.cookies["sessionid"].value, "csrftoken": token}
        self.name, self._connection = name, HTTPConnection("127.0.0.1", port, timeout=25)
        self._headers = {
            "Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()),
            "X-CSRFToken": token,
            "Content-Type": "application/x-www-form-urlencoded",
        }

    def send(self, method: str, path: str, body: str | None = None) -> Any:
        self._connection.request(method, path, body, self._headers)
        answer: Any = self._connection.getresponse()
        answer.content = answer.read()
        return answer

    def save(self, path: str, word: str, together: Barrier) -> bool:
        """Open the form, and send it with a word behind the text when all have opened it."""
        page = self.send("GET", path)
        assert page.status == 200
        text = page.content.decode().partition("<textarea")[2].partition(">")[2].partition("<")[0].strip()
        together.wait(25)
        form = {**hidden(page), "title": "Crowd", "section": "news", "body": f"{text};{word}"}
        answer = self.send("POST", path, urlencode(form))
        assert answer.status in (302, 409), answer.status
        together.wait(25)
        return bool(answer.status == 302)

    def close(self) -> None:
        self._connection.close()


def test_of_a_crowd_that_saves_one_form_one_saves_and_nothing_is_lost() -> None:
    """Each adds a word to the text that the form has shown: the words of all saves are in the text at the end."""
    article, names = Article.objects.create(title="Crowd", body="0"), [f"crowd{number}" for number in range(PEOPLE)]
    together, saved = Barrier(PEOPLE), []

    def take_part(visitor: Visitor) -> None:
        with closing(visitor):
            for turn in range(ROUNDS):
                if visitor.save(f"/articles/{article.pk}/", f"{visitor.name}-{turn}", together):
                    saved.append(f"{visitor.name}-{turn}")

    try:
        with Site(urlconf="testproject.urls") as site, ThreadPoolExecutor(PEOPLE) as pool:
            list(pool.map(take_part, [Visitor(name, site.port) for name in names]))
        article.refresh_from_db()
        assert article.body.split(";") == ["0", *saved]
        assert [word.rpartition("-")[2] for word in saved] == [str(turn) for turn in range(ROUNDS)]
    finally:
        article.delete()
        User.objects.filter(username__in=names).delete()
