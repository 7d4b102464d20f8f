"""Objects of one key in two databases: each function speaks of the database of what it was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from django_distlock.editing import EditConflict, edit_lock, editors
from django_distlock.editing.listing import break_edit
from django_distlock.editing.testing import being_edited, is_being_edited
from testproject.articles.models import Article, Source
from tests.editing.store.desks import emptied

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER = "postgres"


class ToDefault:
    """As with a replica: whatever was read from, everything is written to one database."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.fixture
def pair(databases: None) -> Iterator[tuple[Article, Article]]:
    """An article of the default database, and one of another database with the same key."""
    for _here, _there in zip(emptied("default"), emptied(OTHER), strict=True):
        mine = Article.objects.create(title="Here", body="x")
        yield mine, Article.objects.using(OTHER).create(pk=mine.pk, title="There", body="x")


def who(objects: Any) -> list[str]:
    return [editor.label for editor in editors(objects).values()]


def test_editors_of_a_queryset_that_names_its_database(pair: tuple[Article, Article]) -> None:
    mine, theirs = pair
    with being_edited(theirs, by="Ada"):
        assert who(Article.objects.using(OTHER)) == ["Ada"]
        assert who(Article.objects.using(OTHER).filter(pk=mine.pk)) == ["Ada"]
        assert who(list(Article.objects.using(OTHER))) == ["Ada"]
        assert who(Article.objects.using(OTHER)[:1]) == ["Ada"]
        assert who(Article.objects.all()) == who(Article.objects.using("default")) == []
        with being_edited(mine, by="Bo"):
            assert who(Article.objects.all()) == ["Bo"]
            assert who(Article.objects.using(OTHER)) == ["Ada"]


def test_editors_of_what_belongs_to_an_object_of_the_database(pair: tuple[Article, Article]) -> None:
    mine, theirs = pair
    source = Source.objects.create(article=mine, name="a paper")
    other = Source.objects.using(OTHER).create(pk=source.pk, article=theirs, name="a radio")
    with being_edited(other, by="Ada"):
        assert who(theirs.sources.all()) == ["Ada"]
        assert who(mine.sources.all()) == []


def test_a_router_decides_where_the_objects_of_a_replica_are_locked(
    pair: tuple[Article, Article], settings: Any
) -> None:
    settings.DATABASE_ROUTERS = [ToDefault()]
    with being_edited(pair[1], by="Ada"):
        for rows in (Article.objects.using(OTHER), list(Article.objects.using(OTHER)), Article.objects.all()):
            assert who(rows) == ["Ada"]


def test_locks_of_objects_with_one_key_are_two(pair: tuple[Article, Article]) -> None:
    mine, theirs = pair
    with edit_lock(theirs, by="an import"):
        assert not is_being_edited(mine)
        assert is_being_edited(theirs)
        with edit_lock(mine, by="another one"):
            pass
        assert break_edit(mine) is None
        with pytest.raises(EditConflict), edit_lock(theirs, by="another one"):
            pytest.fail("it is held")
