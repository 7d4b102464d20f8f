"""Processes that edit the same articles as fast as they can, with writers that know no edit locks among them."""

from __future__ import annotations

import contextlib
import random
import time
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError

from django_distlock.editing.records import EditConflict, EditLease
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


def edit(link: Link, place: tuple[str, str], pks: list[int], person: str, seed: str) -> None:
    """Say the tokens of the saves and of the writes behind the lock that were committed, and how much was refused."""
    isolate(Place(*place))
    chance = random.Random(seed)
    articles = list(Article.objects.using(place[0]).filter(pk__in=pks))
    told: dict[str, Any] = {"written": [], "saves": 0, "refused": 0, "fences": [], "wrong": []}
    link.say("ready")
    link.hear()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        article = chance.choice(articles)
        if chance.random() < 0.25:
            _write_behind(article, told)
        else:
            _edit_once(chance, article, Desk(person), told)
    link.say(told)


def _write_behind(article: Article, told: dict[str, Any]) -> None:
    token = new_id()
    try:
        write_behind(article, token)
    except DatabaseError as error:  # at REPEATABLE READ the command is told, and has written nothing
        if not contended(error):
            raise
    else:
        told["written"].append([article.pk, token])


def _edit_once(chance: random.Random, article: Article, desk: Desk, told: dict[str, Any]) -> None:
    """One form from its rendering to its save."""
    token, resource = new_id(), resource_of(article)
    desk.open(article)
    kind = chance.random()
    if kind < 0.8:
        found = desk.take_over(resource) if kind < 0.05 else desk.claim(resource)
        if isinstance(found, Busy):
            if not found.saving and found.holder and found.holder.label == desk.owner.label:
                told["wrong"].append("held by you")
            if chance.random() < 0.7:
                return
        elif isinstance(found, EditLease):
            told["fences"].append([article.pk, found.fence, found.lease])
    time.sleep(chance.random() * 0.01)
    if chance.random() < 0.1:
        with contextlib.suppress(DatabaseError):  # 40001 at REPEATABLE READ
            expire(resource)
    if chance.random() < 0.5 and desk.lease:
        desk.renew(resource)
    try:
        desk.save(token, lambda save: time.sleep(chance.random() * 0.005))
    except EditConflict as conflict:
        told["refused"] += 1
        if conflict.reason == "held" and conflict.holder and conflict.holder.label == desk.owner.label:
            told["wrong"].append("held by you")
    else:
        told["saves"] += 1
        told["written"].append([article.pk, token])
    if desk.lease and chance.random() < 0.8:
        desk.release(resource)


@pytest.mark.timeout(300)
def test_no_update_is_lost_and_no_save_vanishes(place: Place) -> None:
    """What was acknowledged is in the text, in the order of the fences, and nothing else is."""
    articles = [make_article(place.alias) for _ in range(ARTICLES)]
    keys = [article.pk for article in articles]
    with ExitStack() as stack:
        people = [
            stack.enter_context(Child(edit, tuple(place), keys, f"person{number}", f"{number}"))
            for number in range(PROCESSES)
        ]
        for child in people:
            assert child.hear() == "ready"
        for child in people:
            child.say("go")
        told = [child.hear(timeout=SECONDS + 60) for child in people]
    assert not [wrong for each in told for wrong in each["wrong"]]
    for article in articles:
        tokens = text_of(article).split(";")[1:]
        assert sorted(tokens) == sorted(token for each in told for pk, token in each["written"] if pk == article.pk)
        fences = sorted((fence, lease) for each in told for pk, fence, lease in each["fences"] if pk == article.pk)
        assert all(before[0] < after[0] for before, after in pairwise(fences))
    assert sum(each["saves"] for each in told) > PROCESSES
    assert sum(each["refused"] for each in told) > 0
