"""What operators have for both kinds of leases: the subcommands, the section of the admin's page, pruning, checks."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import Client
from django.urls import clear_url_caches, reverse

from django_distlock import BackendUnavailable
from django_distlock.browser import checks as browser_checks
from django_distlock.browser.checks import check_browser
from django_distlock.browser.conf import config as browser_config
from django_distlock.editing import checks as edit_checks
from django_distlock.editing.checks import check_editing
from django_distlock.editing.conf import config as edit_config
from django_distlock.editing.resources import resource_of
from django_distlock.editing.signals import edit_broken
from django_distlock.leases import rows, upkeep
from django_distlock.operations.pruning import prune
from testproject.articles.models import Article
from tests.browserlocks.store.tabs import Tab, forget_everything
from tests.conftest import eventually
from tests.editing.store.desks import Desk, emptied, expire, hearing, make_article

if TYPE_CHECKING:
    from collections.abc import Iterator

ODD = "cart:<b>5</b>\x1b[31m"
LIST = reverse("admin:django_distlock_heldlock_changelist")
BREAK = reverse("admin:django_distlock_heldlock_break_lease")
urlpatterns: list[Any] = []  # a site without addresses


@pytest.fixture
def tab(databases: None) -> Iterator[Tab]:
    """Ada's, with a lock."""
    for alias in emptied("default"):
        found = Tab(alias, "cart:5")
        found.take()
        yield found


@pytest.fixture
def article(tab: Tab) -> Article:
    """Bob edits it."""
    found = make_article("default")
    Desk("bob").claim(resource_of(found))
    return found


def fails(*args: Any, **options: Any) -> Any:
    raise BackendUnavailable("in progress")


# the subcommands


def run(*arguments: str, terminal: bool = False) -> str:
    out = StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]
    call_command("distlock", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_the_subcommands_list_and_end_one(
    tab: Tab, article: Article, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pk, ended = str(article.pk), "was broken: manage.py distlock"
    for command, name, facts, text in (
        ("browser", ["cart:5"], {"name": "cart:5", "held_by": "Ada", "principal": "user:ada"}, "cart:5, held by Ada"),
        ("edits", ["articles.Article", pk], {"model": "articles.article", "pk": pk, "edited_by": "Bob"}, "held by Bob"),
    ):
        (found,) = json.loads(run(command))
        assert facts.items() <= found.items()
        assert found["expires_in"] > found["idle"] >= 0
        assert [len(json.loads(run(command, *more))) for more in (name, ["--database", "default"])] == [1, 1]
        for arguments, message in (
            (["--break"], "Say which lock"),
            (["--break", *name], "add --yes"),
            (["--database", "nowhere"], "no such locks"),
        ):
            with pytest.raises(CommandError, match=message):
                run(command, *arguments)
        with monkeypatch.context() as patch:
            patch.setattr(upkeep, "break_lease", fails)
            with pytest.raises(CommandError, match="in progress"):
                run(command, "--break", *name, "--yes")
        assert f"{text}." in run(command, "--break", *name, "--yes", "--reason", "gone\nhome").partition("Ended: ")[2]
        assert ended in caplog.messages[-1]
        assert "gone\\nhome" in caplog.messages[-1]
        with pytest.raises(SystemExit, match="1"):
            run(command, "--break", *name, "--yes")
        assert json.loads(run(command)) == []
    assert json.loads(run("edits", "auth.user")) == []


def test_the_table_in_a_terminal(tab: Tab) -> None:
    assert run("edits", terminal=True).strip() == "Nothing is being edited."
    Tab("default", ODD, "ada\x1b[31m").take()
    heading, *lines = run("browser", terminal=True).splitlines()
    assert heading.split() == ["DATABASE", "WHAT", "HELD", "BY", "PRINCIPAL", "FOR", "IDLE", "ENDS", "IN"]
    assert lines[0].startswith("default   cart:5")
    assert not [line for line in lines if "\x1b" in line]


# the page of held locks


def permit(user: User, *names: str) -> None:
    user.user_permissions.set(Permission.objects.filter(codename__in=names))


@pytest.fixture
def operator(tab: Tab, settings: Any) -> Iterator[Client]:
    settings.DISTLOCK = {"default": {"BACKEND": "django_distlock.backends.memory.MemoryBackend"}}
    user = User.objects.create(username="operator", password="!", is_staff=True)
    permit(user, "view_heldlock", "break_lock")
    client = Client()
    client.force_login(user)
    yield client
    LogEntry.objects.all().delete()
    user.delete()


def text_of(client: Client) -> str:
    return client.get(LIST).content.decode().partition("distlock-leases")[2]


def forms_of(client: Client) -> dict[str, dict[str, str]]:
    """The hidden fields of each button, by the kind of the lease."""
    fields = re.findall(r'<input type="hidden" name="(kind|lease)" value="([^"]*)">', text_of(client))
    return {first[1]: dict((first, second)) for first, second in zip(fields[::2], fields[1::2], strict=True)}


def test_the_page_shows_who_has_what(operator: Client, tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only who may break locks has a button for it."""
    Tab("default", ODD, "<i>eve</i>").take()
    text = text_of(operator)
    assert "<bdi>cart:5</bdi>" in text
    assert "<bdi>Ada</bdi> <small><bdi>user:ada</bdi></small>" in text
    assert "Break this lock" in text
    assert not [markup for markup in ("<b>5</b>", "<i>Eve", "\x1b") if markup in text]
    permit(User.objects.get(username="operator"), "view_heldlock")
    text = text_of(operator)
    assert "<bdi>cart:5</bdi>" in text
    assert "Break this lock" not in text
    assert operator.post(BREAK, {}).status_code == 403
    with monkeypatch.context() as patch:
        patch.setattr(upkeep, "held", fails)
        assert text_of(operator) == ""
    forget_everything("default")
    assert text_of(operator) == ""


def test_names_of_objects_are_for_those_who_may_see_them(operator: Client, article: Article) -> None:
    link = f'<a href="/admin/articles/article/{article.pk}/change/"><bdi>article On locks</bdi></a>'
    text = text_of(operator)
    assert [part in text for part in ("Bob", f"article {article.pk}", "On locks")] == [True, True, False]
    permit(User.objects.get(username="operator"), "view_heldlock", "view_article")
    assert link in text_of(operator)


def test_breaking_on_the_page(operator: Client, tab: Tab, article: Article, monkeypatch: pytest.MonkeyPatch) -> None:
    assert operator.get(BREAK).status_code == 403
    forms = forms_of(operator)

    def answer(form: str, **wrong: str) -> str:
        sent = {**forms[form], "reason": "gone\nhome", **wrong}
        return operator.post(BREAK, sent, follow=True).content.decode()

    for kind, who in (("edits", "Bob"), ("browser", "Ada")):
        for wrong in ({"lease": "default 1"}, {"lease": ""}, {"kind": ""}):
            assert "it was not broken" in answer(kind, **wrong)
        with monkeypatch.context() as patch:
            patch.setattr(upkeep, "break_lease", fails)
            assert "in progress" in answer(kind)
        with hearing(edit_broken) as heard:
            assert f"The lock of {who} was broken." in answer(kind)
            assert "it was not broken" in answer(kind)
        told = [(each["reason"], each["before"].label) for each in heard]
        assert told == ([("operator: gone home", "Bob")] if kind == "edits" else [])
    assert not tab.release()
    assert upkeep.held("default", of_objects=True) == []
    (entry,) = LogEntry.objects.all()
    assert (entry.object_id, "gone home" in entry.change_message) == (str(article.pk), True)


def test_breaking_asks_only_where_the_lease_is(
    operator: Client, tab: Tab, article: Article, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database of the edit locks does not answer: a browser lock is broken all the same."""
    forms = forms_of(operator)
    held = upkeep.held
    monkeypatch.setattr(
        upkeep, "held", lambda *args, **options: (fails if options["of_objects"] else held)(*args, **options)
    )
    answers = {kind: operator.post(BREAK, form, follow=True).content.decode() for kind, form in forms.items()}
    assert "The lock of Ada was broken." in answers["browser"]
    assert "does not answer (BackendUnavailable); nothing was broken" in answers["edits"]
    assert "in progress;" not in answers["edits"], "nobody knows that"


# pruning


def test_old_rows_are_pruned(tab: Tab, article: Article, settings: Any) -> None:
    waiting = Tab("default", "cart:5", "eve")
    waiting.wait()
    assert (prune(days=0)["browser"], prune(days=0)["edits"]) == (0, 0)
    waiting.miss()
    tab.release()
    rows.count_write(resource_of(article), "a command")
    expire(resource_of(article))
    assert prune(days=30)["browser"] == 1  # the ticket; the row was in use a moment ago
    eventually(lambda: prune(days=0)["browser"] == 1, "the row stays")
    assert prune(days=0)["edits"] == 0, "a form may come back"
    settings.DISTLOCK_EDITING = {"FORM_TTL": 0.000001}
    eventually(lambda: prune(days=30)["edits"] == 1, "the row stays")


# checks


def ids() -> list[str | None]:
    return [message.id for message in (*check_editing(None), *check_browser(None))]


@dataclass
class Router:
    write_to: str | None = None
    migrates: bool | None = None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return self.write_to if model is Article else None

    def allow_migrate(self, db: str, app_label: str, model_name: str | None = None, **hints: Any) -> bool | None:
        return self.migrates if model_name == "weblease" else None


def test_checks_of_the_settings(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ROOT_URLCONF = __name__
    clear_url_caches()
    for name in (browser_checks.ADDRESSES, browser_checks.GUARD, edit_checks.SAVING):  # a project without locks
        monkeypatch.delitem(sys.modules, name, raising=False)
    settings.DISTLOCK_BROWSER = settings.DISTLOCK_EDITING = None
    with monkeypatch.context() as patch:
        patch.setattr(connections["default"], "vendor", "oracle")
        assert ids() == []
    settings.DISTLOCK_BROWSER = {"TTL": 5}
    assert ids() == ["distlock.W082"]
    settings.DISTLOCK_BROWSER, settings.DISTLOCK_EDITING = {"DATABASE": "nowhere"}, {"TTL": 50}
    assert ids() == ["distlock.E080"]


async def arefuse(request: Any, name: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("kind", "given", "text"),
    [
        ("EDITING", ["MODE"], "must be a dict"),
        ("EDITING", {"TIMEOUT": 5}, "unknown key 'TIMEOUT'"),
        ("EDITING", {"TTL": 0}, "TTL must be above zero"),
        ("EDITING", {"TTL": 20, "BEAT": 20}, "BEAT"),
        ("EDITING", {"MODE": "strict"}, "MODE must be one of"),
        ("EDITING", {"LABEL": 5}, "LABEL must be a callable"),
        ("BROWSER", [5], "must be a dict"),
        ("BROWSER", {"TLL": 5}, "unknown key 'TLL'"),
        ("BROWSER", {"MAX_HOLD": 0}, "MAX_HOLD must be above zero"),
        ("BROWSER", {"MAX_BODY": 10}, "MAX_BODY must be at least 1024"),
        ("BROWSER", {"DATABASE": 5}, "DATABASE must be an alias"),
        ("BROWSER", {"PERMISSION": f"{__name__}.arefuse"}, "PERMISSION must be a plain function"),
        ("BROWSER", {"PERMISSION": "no.such.module"}, "PERMISSION: No module named 'no'"),
    ],
)
def test_wrong_settings_are_errors_of_the_check(settings: Any, kind: str, given: Any, text: str) -> None:
    setattr(settings, f"DISTLOCK_{kind}", given)
    config, found = {
        "EDITING": (edit_config, "distlock.E070"),
        "BROWSER": (browser_config, "distlock.E080"),
    }[kind]
    with pytest.raises(ImproperlyConfigured, match=text):
        config()
    assert ids() == [found]


def test_checks_of_the_database(databases: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, browser_checks.ADDRESSES, sys)
    settings.DISTLOCK_BROWSER, settings.DISTLOCK_EDITING = {"TTL": 5}, {"TTL": 50}
    for router, found in (
        (Router(), []),
        (Router(write_to="postgres"), []),
        (Router(migrates=False), ["distlock.W071"] * 2),
    ):
        settings.DATABASE_ROUTERS = [router]
        assert ids() == found
    settings.DATABASE_ROUTERS = []
    monkeypatch.setattr(connections["default"], "vendor", "oracle")
    assert ids() == ["distlock.W071"] * 2
