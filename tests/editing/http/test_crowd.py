"""People who save one form at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TYPE_CHECKING

import pytest
from django.db import connections

from tests.editing.people import Person, body, controls

if TYPE_CHECKING:
    from testproject.articles.models import Article

pytestmark = pytest.mark.tier2
PEOPLE, ROUNDS = 6, 8


def test_of_a_crowd_that_saves_one_form_one_saves_and_nothing_is_lost(
    ada: Person, bo: Person, article: Article
) -> None:
    """Each adds a word to the text that the form has shown: the words of all saves are in the text at the end."""
    path, together, saved = f"/edit/{article.pk}/", Barrier(PEOPLE), []

    def take_part(person: Person, name: str) -> None:
        for turn in range(ROUNDS):
            form = controls(person.client.get(path))
            together.wait(25)
            answer = person.client.post(path, {**form, "body": f"{form['body'][0].strip()};{name}-{turn}"})
            assert answer.status_code in (302, 409), answer.status_code
            if answer.status_code == 302:
                saved.append(f"{name}-{turn}")
            together.wait(25)
        connections.close_all()

    with ThreadPoolExecutor(PEOPLE) as pool:
        crowd = [Person((ada, bo)[number % 2].user) for number in range(PEOPLE)]
        list(pool.map(take_part, crowd, "abcdef"))
    assert body().split(";") == ["On Saturday.", *saved]
    assert [word[2:] for word in saved] == [str(turn) for turn in range(ROUNDS)]
