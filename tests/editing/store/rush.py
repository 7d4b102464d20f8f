"""Processes that edit the same articles as fast as they can, and what each was told."""

from __future__ import annotations

import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from django_distlock.editing import store
from django_distlock.editing.records import Busy, EditConflict, EditLease
from django_distlock.editing.resources import resource_of
from django_distlock.storage.dialect import contended
from testproject.articles.models import Article
from tests.editing.store.desks import Desk, expire, new_id, write_behind
from tests.support.places import Place, isolate

if TYPE_CHECKING:
    from tests.support.child import Link


def edit(link: Link, place: tuple[str, str], pks: list[int], person: str, seconds: float, seed: str) -> None:
    """Say the tokens of the saves and of the writes behind the lock that were committed, and how much was refused."""
    isolate(Place(*place))
    chance = random.Random(seed)
    articles = list(Article.objects.using(place[0]).filter(pk__in=pks))
    told: dict[str, Any] = {"saved": [], "written": [], "refused": 0, "busy": 0, "fences": [], "wrong": []}
    link.say("ready")
    link.hear()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        _one(chance, chance.choice(articles), Desk(person), told)
    link.say(told)


def _one(chance: random.Random, article: Article, desk: Desk, told: dict[str, Any]) -> None:
    """One form from its rendering to its save, or a write that knows no edit locks."""
    token = new_id()
    if chance.random() < 0.25:
        try:
            write_behind(article, token)
        except DatabaseError as error:  # at REPEATABLE READ the command is told, and has written nothing
            if not contended(error):
                raise
        else:
            told["written"].append([article.pk, token])
        return
    resource = resource_of(article)
    desk.open(article)
    kind = chance.random()
    if kind < 0.8:
        found = desk.take_over(resource) if kind < 0.05 else desk.claim(resource)
        if isinstance(found, Busy):
            told["busy"] += 1
            holder = found.holder and found.holder.owner
            if not found.saving and holder and holder.label == desk.owner.label:
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
        told["saved"].append([article.pk, token])
    if desk.lease and chance.random() < 0.8:
        desk.release(resource)


def hold_and_hang(link: Link, alias: str, pk: int) -> None:
    """Claim, and say so; then begin a save, and hang in it until the end."""
    article = Article.objects.using(alias).get(pk=pk)
    desk = Desk("ada")
    desk.open(article)
    assert isinstance(store.claim(resource_of(article), desk.owner, new_id(), 3.0), EditLease)
    link.say("held")
    link.hear()
    desk.save("never", lambda save: (link.say("saving"), link.hear()))
