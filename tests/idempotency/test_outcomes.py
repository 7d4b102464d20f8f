"""Which answers are kept, and what a second request with the same key gets: the table of decisions, row by row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from django.http import HttpResponse

from tests.idempotency.conftest import MIDDLEWARE, Sender, every_database, expire, states
from tests.idempotency.views import streamed, templated

if TYPE_CHECKING:
    from tests.idempotency.views import Stage

BOTH = pytest.mark.parametrize("shape", ["plain", "atomic", "async", "decorated", "async_decorated"])


@every_database
@BOTH
def test_a_second_request_gets_the_first_answer(site: Stage, sender: Sender, shape: str) -> None:
    first = sender.post(shape)
    second = sender.post(shape)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json() == {"run": 1}
    assert second["Location"] == "/made/1/"
    assert second["Idempotency-Replayed"] == "true"
    assert "no-store" in second["Cache-Control"]
    assert "Idempotency-Replayed" not in first
    assert "X-Other" not in second
    assert site.effects == 1
    assert states(site.alias) == ["completed"]


@BOTH
def test_without_a_key_nothing_is_remembered(site: Stage, shape: str) -> None:
    for _ in range(2):
        assert Sender().post(shape).status_code == 201
    assert site.effects == 2
    assert states(site.alias) == []


@BOTH
@pytest.mark.parametrize("method", ["get", "head", "options"])
def test_safe_methods_are_ignored(site: Stage, sender: Sender, key: str, shape: str, method: str) -> None:
    for _ in range(2):
        getattr(sender.client, method)(f"/{shape}/", headers={"Idempotency-Key": key})
    assert site.effects == 2


@every_database
@BOTH
def test_other_data_with_the_same_key_is_a_mismatch(site: Stage, sender: Sender, shape: str) -> None:
    sender.post(shape, {"amount": 1})
    second = sender.post(shape, {"amount": 2})
    assert second.status_code == 422
    assert second["Content-Type"] == "application/problem+json"
    assert second.json()["code"] == "mismatch"
    assert site.effects == 1


def test_the_order_of_json_members_does_not_matter(site: Stage, sender: Sender) -> None:
    sender.post(data='{"a": 1, "b": [1, 2]}')
    assert sender.post(data='{"b": [1,2],\n "a": 1}').status_code == 201
    assert site.effects == 1


@pytest.mark.parametrize("path", ["items/2/", "items/1/?q=1"])
def test_url_arguments_and_query_belong_to_the_fingerprint(site: Stage, sender: Sender, path: str) -> None:
    assert sender.post("items/1").status_code == 201
    assert sender.post(path.rstrip("/")).status_code in (404, 422) or site.effects == 1
    second = sender.client.post(
        f"/{path}", {"name": "x"}, content_type="application/json", headers={"Idempotency-Key": sender.key or ""}
    )
    assert second.status_code == 422
    assert site.effects == 1


def test_methods_and_routes_have_keys_of_their_own(site: Stage, sender: Sender, key: str) -> None:
    sender.post("plain")
    sender.post("decorated")
    sender.client.put("/plain/", {"name": "x"}, content_type="application/json", headers={"Idempotency-Key": key})
    assert site.effects == 3


def test_fields_can_be_left_out_of_the_fingerprint(site: Stage, sender: Sender) -> None:
    sender.post("excluding", {"a": 1, "at": "noon"})
    assert sender.post("excluding", {"a": 1, "at": "one"}).status_code == 201
    assert sender.post("excluding", {"a": 2, "at": "one"}).status_code == 422
    assert site.effects == 1


@pytest.mark.parametrize("status", [400, 402, 404, 405, 410, 415, 422])
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_the_views_own_refusals_are_kept(site: Stage, user: Sender, shape: str, status: int) -> None:
    site.answer = lambda request: HttpResponse("no", status=status)
    assert [user.post(shape).status_code for _ in range(2)] == [status, status]
    assert len(site.runs) == 1


@pytest.mark.parametrize("status", [401, 403, 408, 409, 423, 425, 429])
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_refusals_that_may_pass_are_not_kept(site: Stage, user: Sender, shape: str, status: int) -> None:
    site.answer = lambda request: HttpResponse("not now", status=status)
    assert [user.post(shape).status_code for _ in range(2)] == [status, status]
    assert len(site.runs) == 2
    assert states(site.alias) == []


@every_database
def test_a_server_error_frees_the_key_and_rolls_back(site: Stage, sender: Sender) -> None:
    """Naive code commits: a view that returns 500 has not raised."""
    site.answer = lambda request: HttpResponse(status=500)
    assert sender.post("plain").status_code == 500
    assert site.effects == 1
    assert sender.post("atomic").status_code == 500
    assert site.effects == 1
    del site.answer
    site.answer = lambda request: HttpResponse(status=201)
    assert sender.post("atomic").status_code == 201
    assert site.effects == 2


@every_database
@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("shape", ["atomic", "decorated"])
def test_a_server_error_rolls_back_under_atomic_requests(site: Stage, sender: Sender, shape: str) -> None:
    site.answer = lambda request: HttpResponse(status=503)
    assert sender.post(shape).status_code == 503
    assert site.effects == 0
    assert states(site.alias) == []


@every_database
@BOTH
def test_an_exception_in_the_view_frees_the_key(site: Stage, sender: Sender, shape: str) -> None:
    def fail(request: Any) -> None:
        raise RuntimeError("boom")

    site.during = fail
    assert sender.post(shape).status_code == 500
    assert states(site.alias) == []
    site.during = lambda request: None
    assert sender.post(shape).status_code == 201
    assert site.effects == (1 if shape == "atomic" else 2)


@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_a_streamed_answer_leaves_a_tombstone(site: Stage, sender: Sender, shape: str) -> None:
    site.answer = streamed
    assert b"".join(sender.post(shape).streaming_content) == b"ab"
    second = sender.post(shape)
    assert (second.status_code, second.json()["code"]) == (409, "already_completed")
    assert len(site.runs) == 1


@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_a_large_answer_leaves_a_tombstone(site: Stage, sender: Sender, settings: Any, shape: str) -> None:
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "MAX_BODY": 10}
    site.answer = lambda request: HttpResponse(b"x" * 11, headers={"Location": "/made/7/"})
    assert sender.post(shape).status_code == 200
    second = sender.post(shape)
    assert (second.status_code, second["Location"], second.content) == (303, "/made/7/", b"")
    assert len(site.runs) == 1


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_an_answer_that_is_rendered_after_the_view_is_kept(site: Stage, sender: Sender, shape: str) -> None:
    site.answer = templated
    assert sender.post(shape).content == b"rendered late"
    assert sender.post(shape).content == b"rendered late"
    assert site.effects == 1


def test_a_late_answer_that_fails_to_render_is_done_all_the_same(site: Stage, sender: Sender) -> None:
    """Marked as done first: the rows are committed, so it must not run again."""

    def late(request: Any) -> Any:
        response = templated(request)
        response.context_data = {"a": Unprintable()}
        return response

    site.answer = late
    assert sender.post("atomic").status_code == 500
    assert sender.post("atomic").json()["code"] == "already_completed"
    assert site.effects == 1


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("boom")


def test_only_headers_of_the_list_are_kept(site: Stage, sender: Sender) -> None:
    def answer(request: Any) -> HttpResponse:
        response = HttpResponse("x", headers={"ETag": '"1"', "HX-Trigger": "saved", "X-Secret": "s", "Link": "</a>"})
        response.set_cookie("session", "of-somebody")
        return response

    site.answer = answer
    assert sender.post().cookies
    second = sender.post()
    assert not second.cookies
    assert (second["ETag"], second["HX-Trigger"], second["Link"]) == ('"1"', "saved", "</a>")
    assert "X-Secret" not in second


@pytest.mark.parametrize("shape", ["required", "required_atomic", "dispatch", "async_dispatch"])
def test_a_required_key_that_is_missing(site: Stage, shape: str) -> None:
    response = Sender().post(shape)
    assert (response.status_code, response.json()["code"]) == (400, "missing_key")
    assert 'rel="help"' in response["Link"]
    assert not site.runs


@pytest.mark.parametrize("middleware", [True, False])
@pytest.mark.parametrize("shape", ["dispatch", "async_dispatch", "handler"])
def test_class_based_views(site: Stage, sender: Sender, settings: Any, shape: str, middleware: bool) -> None:
    """Without the middleware the decorator alone answers, below an async class as a coroutine."""
    settings.MIDDLEWARE = MIDDLEWARE if middleware else MIDDLEWARE[:-1]
    assert [sender.post(shape).json()["run"] for _ in range(2)] == [1, 1]
    assert site.effects == 1


@every_database
@pytest.mark.parametrize("shape", ["plain", "atomic"])
def test_after_its_lifetime_a_key_is_new(site: Stage, sender: Sender, shape: str) -> None:
    sender.post(shape)
    expire(site.alias)
    assert sender.post(shape, {"other": "data"}).status_code == 201
    assert site.effects == 2
    assert sender.post(shape, {"other": "data"})["Idempotency-Replayed"] == "true"


def test_nothing_that_is_stored_is_a_pickle(site: Stage, sender: Sender) -> None:
    from django.db import connections

    sender.post()
    with connections[site.alias].cursor() as cursor:
        cursor.execute("SELECT facts, phases, body FROM django_distlock_idempotency")
        facts, phases, body = cursor.fetchone()
    assert json.loads(facts)["status"] == 201
    assert json.loads(phases) == {}
    assert bytes(body) == b'{"run": 1}'
