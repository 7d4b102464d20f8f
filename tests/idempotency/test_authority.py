"""Whom a stored answer is given: what stands above ``@idempotent`` is asked first, in every mode."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.models import User
from django.http import HttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from django_distlock.idempotency import idempotent
from tests.idempotency.views import aact, act, copy_of, hidden, own, show
from tests.idempotency.world import (
    Browser,
    Running,
    Sender,
    Stage,
    change,
    hidden_fields,
    redirect,
    states,
)

allowed = {"yes": True}


def asks(view: Any) -> Any:
    """A decorator such as permission_required or a check of tokens."""

    @wraps(view)
    def above(request: Any, *args: Any, **kwargs: Any) -> Any:
        return view(request, *args, **kwargs) if allowed["yes"] else HttpResponse("no", status=403)

    @wraps(view)
    async def above_async(request: Any, *args: Any, **kwargs: Any) -> Any:
        return await view(request, *args, **kwargs) if allowed["yes"] else HttpResponse("no", status=403)

    return above_async if iscoroutinefunction(view) else above


class Handler(View):
    @method_decorator([asks, idempotent])
    def post(self, request: Any) -> Any:
        return act(request)

    def get(self, request: Any) -> Any:
        return HttpResponse("an empty form")


class Checked(Handler):
    """Asks in a method that overrides the decorated one."""

    def post(self, request: Any) -> Any:
        return super().post(request) if allowed["yes"] else HttpResponse("no", status=403)


def finds_the_user(view: Any) -> Any:
    """A decorator that checks the token and says whose it is."""

    @wraps(view)
    def above(request: Any, *args: Any, **kwargs: Any) -> Any:
        request.user = User(pk=77)
        return view(request, *args, **kwargs)

    return above


def tries_again(view: Any) -> Any:
    """A decorator that calls its view once more if that is busy or fails."""

    @wraps(view)
    def above(request: Any, *args: Any, **kwargs: Any) -> Any:
        for _ in range(3):
            try:
                response = view(request, *args, **kwargs)
            except ZeroDivisionError:
                continue
            if response.status_code != 409:
                break
        return response

    return above


def checks_itself(request: Any) -> Any:
    return act(request) if allowed["yes"] else HttpResponse(status=401)


VIEWS = {
    "plain": asks(own()),
    "atomic": asks(own(atomic=True)),
    "async": asks(idempotent(aact)),
    "partial": partial(asks(own())),
    "handler": Handler.as_view(),
    "form": asks(own(show)),
    "atomic_form": asks(own(show, atomic=True)),
    "hidden": hidden(own()),
    "hidden_atomic": hidden(own(atomic=True)),
    "overridden": Checked.as_view(),
    "itself": copy_of(checks_itself),
    "itself_decorated": own(checks_itself),
    "itself_atomic": own(checks_itself, atomic=True),
    "itself_said": own(checks_itself, replay_to_credentials=True),
    "found": finds_the_user(own()),
    "again": tries_again(own()),
    "again_atomic": tries_again(own(atomic=True)),
    "nobody": own(anonymous=True),
}
urlpatterns = [path(f"{name}/", view) for name, view in VIEWS.items()]


@pytest.fixture(autouse=True)
def here(site: Stage, settings: Any) -> None:
    change(settings, REPLAY_TO_CREDENTIALS=False)
    allowed["yes"] = True


# -- decorators above


@pytest.mark.parametrize("shape", ["plain", "atomic", "async", "handler", "partial"])
def test_decorators_above_are_asked_before_a_replay(site: Stage, user: Sender, shape: str) -> None:
    """Naive code answers in the middleware: whose permission was taken away still gets the stored answer."""
    allowed["yes"] = False
    assert user.post(shape).status_code == 403
    assert states(site.alias) == []
    allowed["yes"] = True
    assert user.post(shape).status_code == 201
    allowed["yes"] = False
    refused = user.post(shape)
    assert (refused.status_code, refused.content) == (403, b"no")
    assert user.post(shape, {"other": "data"}).status_code == 403
    allowed["yes"] = True
    assert user.post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


@pytest.mark.parametrize("shape", ["hidden", "hidden_atomic", "overridden"])
def test_what_hides_the_decorator_is_told_at_once(site: Stage, user: Sender, shape: str, caplog: Any) -> None:
    """Naive code takes such a view for one that has none, and answers before what stands above has been asked."""
    assert user.post(shape).status_code == 500
    assert "did not see" in caplog.text
    assert "Put @idempotent on top" in caplog.text
    assert (site.effects, states(site.alias)) == (0, [])


@pytest.mark.parametrize(("alias", "shape"), [("default", "again"), ("postgres", "again_atomic")])
def test_a_decorator_above_that_calls_the_view_again(site: Stage, user: Sender, shape: str) -> None:
    """Naive code runs the view at the second call, although the key has an answer or is at work."""
    twin, seen = Sender(user.key), []
    twin.client.cookies.update(user.client.cookies)

    def busy(request: Any) -> None:
        if not seen:
            seen.append(None)
            seen[0] = twin.post(shape).status_code

    # the exactly-once mode: the first call fails, and the second is as good as a new request
    site.during = busy if shape == "again" else lambda request: 1 / (len(site.runs) - 1)
    assert user.post(shape).status_code == 201
    assert seen == ([409] if shape == "again" else [])
    assert user.post(shape)["Idempotency-Replayed"] == "true"
    assert site.effects == 1


@pytest.mark.parametrize(("alias", "shape"), [("default", "form"), ("postgres", "atomic_form")])
def test_the_waiting_page_asks_them_too(site: Stage, shape: str) -> None:
    """It sends the form again, so that nothing is shown that the form itself would not get."""
    site.answer = redirect
    first = Browser()
    fields = first.open(shape)
    tab = Browser(first)
    with Running(site, lambda: first.send(fields, shape)):
        again = hidden_fields(tab.send(fields, shape).text)
    allowed["yes"] = False
    assert tab.send(again, shape).status_code == 403
    allowed["yes"] = True
    assert tab.send(again, shape)["Location"] == "/made/1/"


# -- credentials that only the view checks


@pytest.mark.parametrize("shape", ["itself", "itself_decorated", "itself_atomic"])
def test_a_credential_that_only_the_view_checks(site: Stage, sender: Sender, shape: str) -> None:
    """It acts once, and the answer is given once."""
    site.answer = lambda request: HttpResponse("secret", status=201, headers={"Location": "/secret/"})
    assert sender.post(shape).content == b"secret"
    for yes in (True, False):
        allowed["yes"] = yes
        again = sender.post(shape)
        assert (again.status_code, again.json()["code"]) == (409, "already_completed")
        assert "Location" not in again
        assert sender.post(shape, {"other": 1}).json()["code"] == "mismatch"
    assert site.effects == 1


def test_unless_view_or_site_said_so_or_the_user_is_known(site: Stage, sender: Sender, settings: Any) -> None:
    for shape in ("itself_said", "found", "nobody", "itself"):
        change(settings, REPLAY_TO_CREDENTIALS=shape == "itself")
        assert sender.post(shape).status_code == 201
        assert sender.post(shape)["Idempotency-Replayed"] == "true", shape
