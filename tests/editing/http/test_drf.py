"""View sets of the REST framework: 423, ETag, If-Match, 412."""

from __future__ import annotations

from unittest import mock

import pytest
from django.db import connections
from django.test import Client, TestCase, override_settings

from django_distlock.leases import upkeep
from testproject.articles.models import Article
from tests.editing.people import LEASE, Person, body, is_held, make_person, refused, row, sent

JSON = "application/json"


@pytest.fixture
def path(article: Article) -> str:
    return f"/api/{article.pk}/"


def tag(person: Person, path: str) -> str:
    return str(person.client.get(path)["ETag"])


@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("name", ["api", "atomic-api"])
def test_a_write_and_its_tag(ada: Person, bo: Person, article: Article, name: str) -> None:
    """Also in a transaction that began before: atomic-api."""
    form, path = f"/edit/{article.pk}/", f"/{name}/{article.pk}/"
    fields, before = bo.open(form), tag(ada, path)
    done = ada.patch(path, **{"If-Match": before})
    assert done.status_code == 200
    assert done["ETag"] == tag(ada, path) != before
    assert row(article).changed_by == "Ada"
    refused(bo.save(form, fields))
    before = tag(ada, path)
    Article.objects.update(body="By a script.")
    assert ada.patch(path, **{"If-Match": before}).json()["holder"] is None, "the last one to save here was not Ada"
    before = tag(ada, path)
    same = {"title": article.title, "body": body()}
    assert bo.save(form, **same).status_code == 302  # no column differs: many-to-many rows and files are seen so
    assert ada.patch(path, **{"If-Match": before}).status_code == 412
    ada.hold(form)
    assert bo.patch(path, **{"If-Match": tag(ada, path)}).status_code == 423
    assert ada.patch(path, **{"If-Match": tag(ada, path)}).status_code == 200


def test_another_version_is_412(ada: Person, path: str) -> None:
    for given in ('"old"', "W/{}", '"a", "b"', "nonsense", "W/*", '"old", *'):
        answer = ada.patch(path, **{"If-Match": given.format(tag(ada, path))})
        assert (answer.status_code, answer.json()["code"]) == (412, "changed"), given
    assert body() == "On Saturday."
    for given in ("*", '"old", {}'):
        assert ada.patch(path, **{"If-Match": given.format(tag(ada, path))}).status_code == 200, given
    strict = path.replace("api", "strict-api")
    assert ada.patch(strict).status_code == 428
    assert ada.patch(strict, **{"If-Match": tag(ada, path)}).status_code == 200
    for given, status in (('"old"', 412), (tag(ada, path), 204), ('"old"', 404)):
        assert ada.client.delete(path, headers={"If-Match": given}).status_code == status


def test_held_is_423_and_strangers_learn_nothing(ada: Person, bo: Person, article: Article, path: str) -> None:
    """Neither that an object exists nor who edits it."""
    ada.hold(f"/edit/{article.pk}/")
    for verb in ("patch", "put", "delete"):
        answer = getattr(bo.client, verb)(path, sent(), content_type=JSON)
        assert (answer.status_code, answer["Content-Type"]) == (423, "application/problem+json")
        assert (answer.json()["code"], answer.json()["holder"]) == ("held", "Ada")
        known, unknown = (getattr(Client(), verb)(each, {}, content_type=JSON) for each in (path, "/api/0/"))
        assert (known.status_code, known.content) == (unknown.status_code, unknown.content)
        assert known.status_code in (401, 403)
    answer = bo.client.put(f"/own-api/{article.pk}/", sent(), content_type=JSON)
    assert answer.status_code == 423, "its get_object() is the view's own"
    assert body() == "On Saturday."
    assert ada.patch(path).status_code == 200
    action = bo.client.post(f"{path}publish/")  # an action that uses edit_lock()
    assert (action.status_code, action.json()["holder"]) == (423, "Ada")
    made = bo.client.post("/api/", sent(), content_type=JSON)
    assert made.status_code == 201
    assert "ETag" not in made


def test_a_write_that_names_the_lease_keeps_it(ada: Person, article: Article, path: str) -> None:
    held = ada.hold(f"/edit/{article.pk}/")
    headers = {"Distlock-Lease": held[LEASE]}
    for send in (ada.client.patch, ada.client.put):
        assert send(path, sent(), content_type=JSON, headers=headers).status_code == 200
        assert upkeep.held("default", of_objects=True)[0].expires_in > 30
        assert ada.renew(held)["state"] == "held"
    ada.give_back(held)  # and prolongs none that was given back
    assert ada.patch(path, **headers).status_code == 200
    assert not is_held(article) or upkeep.held("default", of_objects=True)[0].expires_in < 10


@override_settings(ROOT_URLCONF="tests.editing.site")
class TestInsideATestCase(TestCase):
    def test_a_refusal_under_atomic_requests_breaks_no_transaction_of_the_test(self) -> None:
        """The framework marks the innermost transaction for a rollback, which must not be that of the TestCase."""
        with mock.patch.dict(connections.settings["default"], ATOMIC_REQUESTS=True):
            assert self.client.get("/api/0/").status_code in (401, 403)
            self.client.force_login(make_person("eve"))
            for verb in ("get", "patch"):
                answer = getattr(self.client, verb)("/api/0/", {}, content_type=JSON)
                assert (answer.status_code, Article.objects.filter(pk=0).count()) == (404, 0)
