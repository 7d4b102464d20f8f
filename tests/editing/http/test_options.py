"""Options and permissions of one view, admin or tag count at its pages, beats and saves."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.admin import GroupAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.template import Context, Template
from django.test import RequestFactory
from django.views.generic import View
from django.views.generic.detail import SingleObjectMixin

from django_distlock.editing import EditLockMixin, edit_locked
from django_distlock.editing.conf import config
from django_distlock.editing.http import audit
from django_distlock.editing.http.forms import LockedForm
from django_distlock.editing.resources import resource_of
from django_distlock.http.visitors import principal_of_user
from django_distlock.models import WebLease
from testproject.articles.models import Article
from tests.editing import site
from tests.editing.people import CHOICE, GRANT, Person, body, is_held, make_person, refused, sent
from tests.support.findings import findings

ADMIN = type(admin.site._registry[Article])
OF_ADMIN = "/admin/articles/article/{}/change/"
SITE_WIDE = {"TTL": 120, "BEAT": 5, "FORM_TTL": 3600, "LABEL": str}


@pytest.fixture
def stranger(crew: None) -> Person:
    """Logged in, without any permission."""
    user = make_person("stranger")
    user.user_permissions.clear()
    return Person(user)


@pytest.mark.parametrize(
    ("of", "path"),
    [
        ("setting", "/edit/{}/"),
        ("setting", "/function/{}/"),
        ("view", "/edit/{}/"),
        ("admin", OF_ADMIN),
        ("function", "/by-call/{}/"),
    ],
)
def test_e18_from_whom_one_may_take_over(
    ada: Person,
    bo: Person,
    boss: Person,
    article: Article,
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    of: str,
    path: str,
) -> None:
    """By a beat, and with the button of a refused save."""
    path, asked, of_ada = path.format(article.pk), [], principal_of_user(ada.user)

    def rule(user: Any, obj: Any, holder: str) -> bool:
        asked.append((user, obj))
        return holder != of_ada

    if of == "setting":
        settings.DISTLOCK_EDITING = {"TAKEOVER": rule}
    elif of == "function":
        monkeypatch.setattr(site.Rules, "takeover", lambda request, obj: rule(request.user, obj, of_ada))
    else:
        monkeypatch.setattr(site.Edit if of == "view" else ADMIN, "edit_lock", {"TAKEOVER": rule}, raising=False)
    theirs, mine = boss.open(path), ada.hold(path)
    answer = boss.ask("claim", theirs[GRANT])
    assert (answer["state"], answer["can_take_over"]) == ("busy", False)
    assert boss.ask("takeover", theirs[GRANT])["reason"] == "permission"
    assert asked[-1] == (boss.user, article)
    assert CHOICE not in refused(boss.save(path, theirs))
    refused(boss.save(path, theirs, **{CHOICE: "overwrite"}))
    assert ada.renew(mine)["state"] == "held"
    ada.give_back(mine)
    bo.hold(path)
    assert boss.save(path, theirs, **{CHOICE: "overwrite"}).status_code == (409 if of == "function" else 302)


def test_options_of_one_page_are_in_its_form(ada: Person, article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    for of in (site.Edit, ADMIN):
        monkeypatch.setattr(of, "edit_lock", {"WHEN": "open", "IDLE": 333}, raising=False)
    for path in ("/edit/{}/", "/eager/{}/", OF_ADMIN):
        assert 'data-idle="333"' in ada.client.get(path.format(article.pk)).content.decode()
        assert is_held(article)
        WebLease.rows.all().delete()


@pytest.mark.parametrize(("name", "value"), SITE_WIDE.items())
def test_an_option_of_the_whole_site_is_refused_in_one_view(ada: Person, rf: Any, name: str, value: Any) -> None:
    options, request = {"edit_lock": {name: value}}, rf.get("/")
    request.user, request.session = ada.user, ada.client.session

    def tag(option: str) -> Any:
        template = Template(f"{{% load editing %}}{{% edit_lock article {option}=5 %}}")
        article = Article.objects.create(title="x")
        LockedForm(resource=resource_of(article), config=config()).tell(request)
        return template.render(Context({"article": article, "request": request}))

    for make in (
        lambda: type("View", (site.Edit,), options).as_view(),
        lambda: site.Edit.as_view(**options),
        lambda: type("Views", (site.Api,), options).as_view(site.one),
        lambda: edit_locked(Article, **{name.lower(): value}),
        lambda: tag(name.lower()),
    ):
        with pytest.raises(ImproperlyConfigured, match=name):
            make()
    for option in ("takeover", "idel"):
        with pytest.raises(ImproperlyConfigured, match=option.upper()):
            tag(option)
    with pytest.raises(ImproperlyConfigured, match="edit_lock_inlines"):  # no inline formset
        type("Wrong", (site.Everything,), {"edit_lock_inlines": (Article,)}).as_view()


def test_handlers_that_are_async_are_refused_when_the_view_is_made() -> None:
    async def handler(self: Any, request: Any) -> Any:
        pytest.fail("Nothing would be locked while it runs.")

    handlers = dict.fromkeys(("get", "post"), handler)
    with pytest.raises(ImproperlyConfigured, match="edit_locked"):
        type("Async", (EditLockMixin, SingleObjectMixin, View), handlers).as_view()


def test_users_of_no_table_are_not_one_principal() -> None:
    """As an authentication by token makes them. Nor is one the user whose number is its name."""
    users = [User(username="ada"), User(username="bo"), User(username="5"), User(pk=5, username="ada")]
    assert len({principal_of_user(user) for user in users}) == len(users)


def test_an_option_of_the_whole_site_is_an_error_of_the_check_in_one_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    def errors() -> list[Any]:
        return [message for message in findings() if message.id == "distlock.E072"]

    # another admin may have such an attribute: a column, for example
    monkeypatch.setattr(GroupAdmin, "edit_lock", lambda self, obj: "x", raising=False)
    monkeypatch.setattr(ADMIN, "edit_lock", {"MODE": "warn", "IDLE": 5}, raising=False)
    assert not errors()
    for name in ("TTL", "IDEL"):
        monkeypatch.setattr(ADMIN, "edit_lock", {name: 5})
        (found,) = errors()
        assert found.obj == ADMIN
        assert name in found.msg


# permission= of a function refuses every request, before anything is locked or told


@pytest.mark.parametrize("kind", ["by-name", "by-name-open", "by-name-off", "by-call", "async"])
def test_strangers_and_those_with_the_permission(
    ada: Person, stranger: Person, bo: Person, article: Article, settings: Any, kind: str
) -> None:
    held = ada.hold(f"/by-name/{article.pk}/")
    before = list(WebLease.rows.values())
    path, nobody = f"/{kind}/{article.pk}/", Person(None)
    for method in ("get", "head", "post", "put", "patch", "delete"):
        data = {"data": sent(body="By a stranger.")} if method in ("get", "post") else {}
        reply = getattr(nobody.client, method)(path, **data)
        assert (method, reply.status_code) == (method, 302)
        assert "/login/" in reply["Location"]
        assert kind in reply["Location"]
        reply = getattr(stranger.client, method)(path, **data)
        assert (method, reply.status_code) == (method, 403)
        assert b"Ada" not in reply.content
    settings.LOGIN_URL = None  # a site without a log-in
    assert nobody.client.get(path).status_code == 403
    assert body() == "On Saturday."
    assert list(WebLease.rows.values()) == before
    ada.give_back(held)
    assert bo.save(path, body="By Bo.").status_code == 302
    assert body() == "By Bo."


def test_e18_a_user_of_another_model_writes_nothing_in_the_name_of_a_user(ada: Person, article: Article) -> None:
    """The history of the admin has users of AUTH_USER_MODEL only; the log and the signal name the other one."""
    request = RequestFactory().post("/")
    request.user = Group(pk=ada.user.pk)
    request.user.is_authenticated = True
    audit.log(request, resource_of(article), "Took over.")
    assert not LogEntry.objects.exists()
    request.user = ada.user
    audit.log(request, resource_of(article), "Took over.")
    assert LogEntry.objects.get().user == ada.user


def test_may_edit_of_a_view_refuses_the_page_and_the_save(stranger: Person, ada: Person, article: Article) -> None:
    class Decided(site.Edit):
        def may_edit(self, request: Any, obj: Any) -> bool:
            return request.user.has_perm(site.CHANGE)

    class Async(Decided):
        async def may_edit(self, request: Any, obj: Any) -> bool:
            return False

    def ask(view: Any, person: Person, method: str) -> int:
        request = getattr(RequestFactory(), method)("/", sent(body="By a stranger."))
        request.user, request.session = person.user, person.client.session
        return view.as_view()(request, pk=article.pk).status_code

    for method in ("get", "post"):
        with pytest.raises(PermissionDenied):
            ask(Decided, stranger, method)
    assert ask(Decided, ada, "get") == 200
    with pytest.raises(TypeError, match="plain function"):  # a coroutine would always mean yes
        ask(Async, stranger, "post")
    for name in ("permission", "takeover"):
        with pytest.raises(TypeError, match="plain functions"):
            edit_locked(Article, pk="pk", **{name: Async.may_edit})
    assert body() == "On Saturday."
