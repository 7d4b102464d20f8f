"""Processes that edit the same articles as fast as they can, with writers that know no edit locks among them."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
from django.db import DatabaseError

from django_distlock.editing.records import EditConflict
from django_distlock.editing.resources import resource_of
from django_distlock.leases.records import Busy
from django_distlock.storage.dialect import contended
from testproject.articles.models import Article
from tests.editing.store.desks import Desk, expire, make_article, new_id, text_of, write_behind
from tests.support.places import Place, isolate
from tests.support.processes import Child

if TYPE_CHECKING:
    from tests.support.child import Link

pytestmark = pytest.mark.tier2
PROCESSES, ARTICLES, SECONDS = 6, 3, 2.0


def edit(link: Link, place: tuple[str, str], pks: list[int], person: str) -> None:
    """Say the tokens of the saves and of the writes behind the lock, and how often others were first."""
    isolate(Place(*place))
    chance = random.Random(person)
    articles = list(Article.objects.using(place[0]).filter(pk__in=pks))
    saved, behind, tried = [], [], 0
    link.say("ready")
    link.hear()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        article, token = chance.choice(articles), new_id()
        if chance.random() < 0.25:
            behind += [token] * _is_written_behind(article, token)
        else:
            tried += 1
            saved += [token] * _is_saved(chance, article, token, Desk(person))
    link.say([saved, behind, tried - len(saved)])


def _is_written_behind(article: Article, token: str) -> bool:
    try:
        write_behind(article, token)
    except DatabaseError as error:  # at REPEATABLE READ the command is told, and has written nothing
        if not contended(error):
            raise
        return False
    return True


def _is_saved(chance: random.Random, article: Article, token: str, desk: Desk) -> bool:
    """One form from its rendering to its save."""
    resource = resource_of(article)
    desk.open(article)
    kind = chance.random()
    if kind < 0.8:
        found = desk.take_over(resource) if kind < 0.05 else desk.claim(resource)
        if isinstance(found, Busy) and chance.random() < 0.7:
            return False
    time.sleep(chance.random() * 0.01)
    if chance.random() < 0.1:
        with suppress(DatabaseError):  # 40001 at REPEATABLE READ
            expire(resource)
    if chance.random() < 0.5 and desk.lease:
        desk.renew(resource)
    try:
        desk.save(token, lambda save: time.sleep(chance.random() * 0.005))
    except EditConflict:
        return False
    finally:
        if desk.lease and chance.random() < 0.8:
            desk.release(resource)
    return True


@pytest.mark.timeout(300)
def test_no_update_is_lost_and_no_save_vanishes(place: Place) -> None:
    """What was acknowledged is in the texts, and nothing else is."""
    articles = [make_article(place.alias) for _ in range(ARTICLES)]
    keys = [article.pk for article in articles]
    with ExitStack() as stack:
        people = [
            stack.enter_context(Child(edit, tuple(place), keys, f"person{number}")) for number in range(PROCESSES)
        ]
        for child in people:
            assert child.hear() == "ready"
        for child in people:
            child.say("go")
        told = [child.hear(timeout=SECONDS + 60) for child in people]
    written = [token for saved, behind, _ in told for token in (*saved, *behind)]
    assert sorted(written) == sorted(token for article in articles for token in text_of(article).split(";")[1:])
    assert sum(len(saved) for saved, _, _ in told) > PROCESSES
    assert any(late for _, _, late in told)
