"""One project, several hosts: the key of one is not the key of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client
from django.urls import clear_url_caches, path

from django_distlock.idempotency import idempotent
from django_distlock.idempotency.conf import config
from tests.idempotency.test_forms import hidden_fields
from tests.idempotency.views import SHAPES, act, copy_of, redirect

if TYPE_CHECKING:
    from tests.idempotency.conftest import Sender
    from tests.idempotency.views import Stage


def schema(request: Any) -> str:
    """What django-tenants and its like write on each request."""
    return str(request.headers.get("X-Schema", "public"))


urlpatterns = [
    *(path(f"{shape}/", SHAPES[shape]) for shape in ("plain", "atomic", "async", "form")),
    path("by_schema/", idempotent(scope=schema)(copy_of(act))),
    path("wrong/", idempotent(scope=lambda request: 7)(copy_of(act))),  # type: ignore[arg-type,return-value]
]


@pytest.fixture(autouse=True)
def hosts(site: Stage, settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.ALLOWED_HOSTS = [".example"]
    clear_url_caches()


def runs(sender: Sender, shape: str, hosts: list[str], **headers: str) -> list[int]:
    return [sender.post(shape, headers={"Host": host, **headers}).json()["run"] for host in hosts]


@pytest.mark.parametrize("shape", ["plain", "atomic", "async"])
def test_the_answer_of_one_host_is_not_given_at_another(sender: Sender, shape: str) -> None:
    """Naive code gives tenant A's answer on tenant B, and B's order is not made."""
    hosts = ["a.example", "b.example", "a.example", "b.example:8000", "A.EXAMPLE"]
    assert runs(sender, shape, hosts) == [1, 2, 1, 3, 1]


def test_a_host_that_is_not_allowed_is_refused(sender: Sender, site: Stage) -> None:
    assert sender.post(headers={"Host": "evil.test"}).status_code == 400
    assert not site.runs


def test_a_form_key_of_one_host_acts_at_the_other_too(site: Stage) -> None:
    site.answer = redirect
    client = Client()
    fields = hidden_fields(client.get("/form/", headers={"Host": "a.example"}).content.decode().split("<form")[1])
    for host in ("a.example", "b.example"):
        for _ in range(2):
            assert client.post("/form/", fields, headers={"Host": host}).status_code == 302
    assert site.effects == 2


def test_a_view_names_its_tenant(sender: Sender) -> None:
    """In place of the host: several hosts of one tenant, or several tenants at one host."""
    assert runs(sender, "by_schema", ["a.example", "b.example"], **{"X-Schema": "one"}) == [1, 1]
    assert runs(sender, "by_schema", ["a.example"], **{"X-Schema": "two"}) == [2]


@pytest.mark.parametrize("given", [schema, f"{__name__}.schema"])
def test_all_views_name_their_tenant(sender: Sender, settings: Any, given: Any) -> None:
    settings.DISTLOCK_IDEMPOTENCY = {**settings.DISTLOCK_IDEMPOTENCY, "SCOPE": given}
    assert runs(sender, "plain", ["a.example", "b.example"]) == [1, 1]


@pytest.mark.parametrize("given", ["no.such.function", 7])
def test_a_scope_that_is_none_is_an_error_of_the_setting(settings: Any, given: Any) -> None:
    settings.DISTLOCK_IDEMPOTENCY = {"SCOPE": given}
    with pytest.raises(ImproperlyConfigured, match="SCOPE"):
        config()


def test_a_scope_that_is_no_text_is_an_error(sender: Sender, site: Stage, caplog: Any) -> None:
    assert sender.post("wrong", headers={"Host": "a.example"}).status_code == 500
    assert "scope must return a str" in caplog.text
    assert not site.runs
