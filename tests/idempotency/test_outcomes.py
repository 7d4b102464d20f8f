"""Which answers are kept, and what a second request with the same key gets: the table of decisions, row by row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connections
from django.http import HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse

from django_distlock.idempotency import idempotent
from tests.idempotency import MIDDLEWARE
from tests.idempotency.world import (
    Sender,
    Stage,
    change,
    created,
    every_database,
    fails,
    nothing_is_renewed,
    sql,
    states,
)

BOTH = pytest.mark.parametrize("shape", ["plain", "atomic"])
FACES = pytest.mark.parametrize("shape", ["plain", "atomic", "async", "async_decorated"])
EVERYWHERE = [("default", shape) for shape in ("plain", "atomic", "async", "decorated", "async_decorated")] + [
    (alias, "atomic") for alias in ("postgres", "mariadb")
]


@pytest.mark.parametrize(("alias", "shape"), EVERYWHERE)
def test_a_second_request_gets_the_first_answer(site: Stage, sender: Sender, shape: str) -> None:
    first, second, other = sender.post(shape), sender.post(shape), sender.post(shape, {"amount": 2})
    assert first.status_code == second.status_code == 201
    assert first.json() == second.json() == {"run": 1}
    assert (second["Location"], second["Idempotency-Replayed"]) == ("/made/1/", "true")
    assert "no-store" in second["Cache-Control"]
    assert "Idempotency-Replayed" not in first
    assert "X-Other" not in second
    assert (other.status_code, other.json()["code"]) == (422, "mismatch")
    assert (other["Content-Type"], other.json()["type"]) == ("application/problem+json", "about:blank")
    assert (site.effects, states(site.alias)) == (1, ["completed"])


def test_what_belongs_to_the_fingerprint_and_what_to_the_key(site: Stage, sender: Sender) -> None:
    """Address and query to the one, route and method to the other."""
    assert [sender.post(path).status_code for path in ("items/1", "items/2", "items/1/?q=1&a=")] == [201, 422, 422]
    for shape in ("plain", "decorated"):
        sender.post(shape)
    sender.client.put("/plain/", headers={"Idempotency-Key": sender.key or ""})
    assert site.effects == 4
    bodies = ({"a": 1, "at": "noon"}, {"a": 1, "at": "one"}, {"a": 2, "at": "one"})
    assert [sender.post("excluding", body).status_code for body in bodies] == [201, 201, 422]
    assert site.effects == 5


KEPT, PASSING = (400, 402, 404, 405, 410, 415, 422), (401, 403, 408, 409, 423, 425, 429)


@BOTH
def test_the_views_own_refusals_are_kept_unless_they_may_pass(site: Stage, user: Sender, shape: str) -> None:
    for status in KEPT + PASSING:
        site.runs.clear()
        site.answer = lambda request, status=status: HttpResponse("no", status=status)
        assert [user.post(shape, key=f"k{status}").status_code for _ in range(2)] == [status, status]
        assert len(site.runs) == (1 if status in KEPT else 2), status
    assert states(site.alias) == ["completed"] * len(KEPT)


@every_database
@pytest.mark.parametrize("in_transaction", [False, True])
def test_a_server_error_frees_the_key_and_rolls_back(
    site: Stage, sender: Sender, monkeypatch: pytest.MonkeyPatch, in_transaction: bool
) -> None:
    """Naive code commits: a view that returns 500 has not raised."""
    monkeypatch.setitem(connections.settings[site.alias], "ATOMIC_REQUESTS", in_transaction)
    site.answer = lambda request: HttpResponse(status=500)
    assert [sender.post(shape).status_code for shape in ("decorated", "atomic")] == [500, 500]
    assert (site.effects, states(site.alias)) == (0 if in_transaction else 1, [])
    site.answer = created
    assert sender.post("atomic").status_code == 201
    assert states(site.alias) == ["completed"]


@FACES
def test_an_exception_in_the_view_frees_the_key(site: Stage, sender: Sender, shape: str) -> None:
    site.during = fails(RuntimeError("boom"))
    assert sender.post(shape).status_code == 500
    assert nothing_is_renewed(), "the claim is renewed for as long as the process lives"
    assert states(site.alias) == []
    site.during = lambda request: None
    assert sender.post(shape).status_code == 201
    assert site.effects == (1 if shape == "atomic" else 2)


@pytest.mark.parametrize("shape", ["decorated", "async_decorated"])
@pytest.mark.parametrize("below", [False, True])
def test_who_forgets_its_answer_has_acted(site: Stage, sender: Sender, settings: Any, shape: str, below: bool) -> None:
    """Naive code takes the error for one of the view, frees the key, and acts once more."""
    settings.MIDDLEWARE = MIDDLEWARE if below else MIDDLEWARE[:-1]
    site.answer = lambda request: None
    assert [sender.post(shape).status_code for _ in range(2)] == [500, 409]
    assert (site.effects, states(site.alias), nothing_is_renewed()) == (1, ["claimed"], True)


@BOTH
def test_a_streamed_or_large_answer_leaves_a_tombstone(site: Stage, sender: Sender, settings: Any, shape: str) -> None:
    site.answer = lambda request: StreamingHttpResponse([b"a", b"b"])
    assert b"".join(sender.post(shape).streaming_content) == b"ab"
    second = sender.post(shape)
    assert (second.status_code, second.json()["code"]) == (409, "already_completed")
    change(settings, MAX_BODY=10)
    site.answer = lambda request: HttpResponse(b"x" * 11, headers={"Location": "/made/7/"})
    assert sender.post(shape, key="large").status_code == 200
    second = sender.post(shape, key="large")
    assert (second.status_code, second["Location"], second.content) == (303, "/made/7/", b"")
    assert len(site.runs) == 2


def rendered_late(value: object) -> Any:
    template: Any = engines["django"].from_string("rendered {{ a }}")
    return lambda request: TemplateResponse(request, template, {"a": value}, status=201)


@BOTH
def test_an_answer_that_is_rendered_after_the_view_is_kept(site: Stage, sender: Sender, shape: str) -> None:
    """In the exactly-once mode it is done also if that fails: the rows are committed by then."""
    site.answer = rendered_late("late")
    assert [sender.post(shape).content for _ in range(2)] == [b"rendered late"] * 2
    assert site.effects == 1
    if shape == "atomic":
        site.answer = rendered_late(fails(RuntimeError("boom")))
        assert sender.post(shape, key="other").status_code == 500
        assert sender.post(shape, key="other").json()["code"] == "already_completed"
        assert site.effects == 2


def test_only_headers_of_the_list_are_kept_and_nothing_as_a_pickle(site: Stage, sender: Sender) -> None:
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
    ((answer, phases),) = sql(site.alias, "SELECT answer, phases FROM {keys}")
    facts, body = bytes(answer).split(b"\n")
    assert (json.loads(facts)["status"], json.loads(phases), body) == (200, {}, b"x")


@pytest.mark.parametrize("middleware", [True, False])
def test_class_based_views_and_required_keys(site: Stage, sender: Sender, settings: Any, middleware: bool) -> None:
    """Without the middleware the decorator alone answers, below an async class as a coroutine."""
    settings.MIDDLEWARE = MIDDLEWARE if middleware else MIDDLEWARE[:-1]
    for number, shape in enumerate(("dispatch", "async_dispatch", "handler"), start=1):
        assert [sender.post(shape).json()["run"] for _ in range(2)] == [number, number], shape
    for shape in ("required", "required_atomic", "dispatch", "async_dispatch"):
        response = Sender().post(shape)
        assert (response.status_code, response.json()["code"]) == (400, "missing_key"), shape
        assert 'rel="help"' in response["Link"]
    assert site.effects == 3


class Failing:
    """A middleware that fails before the view or after it, as the request says."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        response = self.get_response(request)
        self.fail(request, "after")
        return response

    def process_view(self, request: Any, *view: Any) -> None:
        self.fail(request, "before")

    def fail(self, request: Any, where: str) -> None:
        if request.headers.get("X-Fail") == where:
            raise RuntimeError("boom")


@pytest.mark.parametrize("shape", ["plain", "decorated", "async", "atomic"])
def test_an_exception_in_another_middleware(site: Stage, sender: Sender, settings: Any, shape: str) -> None:
    """It is none of the view, which has acted or has not begun."""
    failing = f"{__name__}.Failing"
    settings.MIDDLEWARE = [*MIDDLEWARE, failing]
    if shape != "atomic":
        assert sender.post(shape, headers={"X-Fail": "before"}).status_code == 500
        assert (site.runs, states(site.alias)) == ([], [])
        assert sender.post(shape).status_code == 201
    for number, settings.MIDDLEWARE in enumerate(([*MIDDLEWARE, failing], [failing, *MIDDLEWARE])):
        done = site.effects
        assert sender.post(shape, key=f"k{number}", headers={"X-Fail": "after"}).status_code == 500
        assert sender.post(shape, key=f"k{number}").status_code in (201, 409)
        assert site.effects == done + 1


def test_derived_keys(site: Stage, sender: Sender) -> None:
    """The same for the same request, another one for each name, principal and key."""
    derived: list[tuple[str, str]] = []

    def derive(request: Any) -> None:
        derived.append((request.idempotency.derive("payments"), request.idempotency.derive("mail")))
        raise RuntimeError("boom")

    site.during = derive
    for post in (sender, sender, Sender(sender.key, who="b"), Sender("another")):
        post.post()
    assert derived[0] == derived[1]
    assert len({value for pair in derived for value in pair}) == 6


def test_without_a_key_a_view_needs_no_branches(site: Stage) -> None:
    def use(request: Any) -> None:
        state = request.idempotency
        assert (bool(state), state.key) == (False, None)
        assert state.derive("a") != state.derive("a")
        with state.phase("charge") as charge:
            assert not charge.done
        state.keep()

    site.during = use
    assert Sender().post().status_code == 201


async def coroutine(*args: Any) -> Any:
    return "retry"


# The values are judged as those of the settings are: test_operation.py.
WRONG: list[tuple[dict[str, Any], type[Exception]]] = [
    *(({"ttl": 0}, ValueError), ({"atomic": 1}, TypeError), ({"fingerprint_exclude": "name"}, TypeError)),
    *(({"key": "header"}, TypeError), ({"timeout": 1}, TypeError)),
    *(({"on_crash": coroutine}, TypeError), ({"key": coroutine}, TypeError)),
]


def test_wrong_options_fail_at_once() -> None:
    for options, error in WRONG:
        with pytest.raises(error, match=next(iter(options))):
            idempotent(**options)
    with pytest.raises(TypeError, match="sync view"):
        idempotent(atomic=True)(coroutine)
    with pytest.raises(TypeError, match="method_decorator"):
        idempotent(type("View", (), {}))
    with pytest.raises(TypeError, match="no request"):
        idempotent(lambda value: value)(1)
