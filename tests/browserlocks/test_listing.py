"""What operators have: the list, the subcommand, pruning, checks, and the section of the admin's page."""

from __future__ import annotations

import json
import re
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connections, router
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.urls import clear_url_caches, reverse

from django_distlock import BackendUnavailable
from django_distlock.browser import checks, listing, store
from django_distlock.operations.pruning import prune
from tests.browserlocks.store.tabs import Tab, forget_everything
from tests.conftest import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

ODD = "cart:<b>5</b>\x1b[31m"
LIST = reverse("admin:django_distlock_heldlock_changelist")
BREAK = reverse("admin:django_distlock_heldlock_break_browser")
urlpatterns: list[Any] = []  # a site without addresses


@pytest.fixture
def tab(databases: None) -> Iterator[Tab]:
    """Ada's, with a lock."""
    forget_everything("default")
    found = Tab("default", "cart:5")
    found.take()
    yield found
    forget_everything("default")


def fails(*args: Any) -> Any:
    raise BackendUnavailable("in progress")


def test_operators_list_and_end_them(tab: Tab, caplog: pytest.LogCaptureFixture) -> None:
    Tab("default", "cart:6", "bob").take()
    assert {row.name for row in listing.list_browser_locks()} == {"cart:5", "cart:6"}
    (row,) = listing.list_browser_locks("cart:6")
    assert row.label == "Bob"
    assert [listing.break_browser_lock(row, reason="gone\nhome") for _ in range(2)] == [True, False]
    assert caplog.messages == ["The browser lock 'cart:6' of Bob was broken: gone\\nhome"]
    tab.expire()
    assert listing.list_browser_locks() == listing.list_browser_locks("cart:5") == []


def test_old_rows_are_pruned(tab: Tab) -> None:
    waiting = Tab("default", "cart:5", "bob")
    waiting.wait()
    assert prune(days=0)["browser"] == 0
    waiting.miss()
    tab.release()
    assert prune(days=30)["browser"] == 1  # the ticket; the row was in use a moment ago
    eventually(lambda: prune(days=0)["browser"] == 1, "the row stays")


def run(*arguments: str, terminal: bool = False) -> str:
    out = StringIO()
    out.isatty = lambda: terminal  # type: ignore[method-assign]
    call_command("distlock", "browser", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_the_subcommand(tab: Tab) -> None:
    (found,) = json.loads(run())
    said = [found[key] for key in ("name", "held_by", "principal", "fence")]
    assert said == ["cart:5", "Ada", "user:ada", tab.fence]
    for arguments, message in ((["--break"], "Say which lock"), (["--break", "cart:5"], "add --yes")):
        with pytest.raises(CommandError, match=message):
            run(*arguments)
    assert "Ended: cart:5, held by Ada." in run("--break", "cart:5", "--yes", "--reason", "gone home")
    with pytest.raises(SystemExit, match="1"):
        run("--break", "cart:5", "--yes")
    assert json.loads(run()) == []
    assert "No browser lock is held." in run(terminal=True)
    Tab("default", ODD, "ada\x1b[31m").take()
    heading, line = run(terminal=True).splitlines()
    assert heading.split() == ["NAME", "HELD", "BY", "PRINCIPAL", "FOR", "ENDS", "IN"]
    assert "\x1b" not in line


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
    user.delete()


def text_of(client: Client) -> str:
    return client.get(LIST).content.decode()


def test_the_page_shows_who_has_what(operator: Client, tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only who may break locks has a button for it."""
    Tab("default", ODD, "<i>eve</i>").take()
    text = text_of(operator)
    assert "<bdi>cart:5</bdi>" in text
    assert "<bdi>Ada</bdi> <small><bdi>user:ada</bdi></small>" in text
    assert "Break this browser lock" in text
    assert not [markup for markup in ("<b>5</b>", "<i>Eve") if markup in text]
    assert "\x1b" not in text.replace(f'value="{"cart:&lt;b&gt;5&lt;/b&gt;" + chr(27)}[31m"', "")
    permit(User.objects.get(username="operator"), "view_heldlock")
    text = text_of(operator)
    assert "<bdi>cart:5</bdi>" in text
    assert "Break this browser lock" not in text
    assert operator.post(BREAK, {"name": "cart:5", "fence": str(tab.fence)}).status_code == 403
    with monkeypatch.context() as patch:
        patch.setattr(store, "held", fails)
        assert "distlock-browser" not in text_of(operator)
    forget_everything("default")
    assert "distlock-browser" not in text_of(operator)


def test_breaking_on_the_page(operator: Client, tab: Tab, monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(operator).partition("distlock-browser")[2]
    sent = dict(re.findall(r'<input type="hidden" name="(name|fence)" value="([^"]*)">', text))

    def answer(**wrong: str) -> str:
        return operator.post(BREAK, {**sent, "reason": "gone home", **wrong}, follow=True).content.decode()

    assert operator.get(BREAK).status_code == 403
    assert operator.post(BREAK, {**sent, "name": ""}).status_code == 403
    for wrong in ({"fence": "1"}, {"name": "cart:6"}, {"fence": ""}):
        assert "it was not broken" in answer(**wrong)
    with monkeypatch.context() as patch:
        patch.setattr(store, "break_lease", fails)
        assert "in progress" in answer()
    assert store.read("default", ["cart:5"])["cart:5"].held
    assert "The browser lock of Ada was broken." in answer()
    assert not store.read("default", ["cart:5"])["cart:5"].held
    assert "it was not broken" in answer()


# checks


def ids(databases: list[str] | None = None) -> list[str | None]:
    found = checks.check_browser(None) if databases is None else checks.check_table(None, databases=databases)
    return [message.id for message in found]


def test_checks_of_the_setting(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ROOT_URLCONF = __name__
    clear_url_caches()
    for name in (checks.ADDRESSES, checks.GUARD):  # a project without browser locks
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert ids() == []
    for setting, found in (({"TTL": 5}, "distlock.W082"), ({"TLL": 5}, "distlock.E080")):
        settings.DISTLOCK_BROWSER = setting
        assert ids() == [found]
    assert ids(["default"]) == []
    settings.DISTLOCK_BROWSER = {"DATABASE": "nowhere"}
    assert "distlock.E081" in ids()
    assert ids(["default", "nowhere"]) == []


def test_checks_of_the_database(databases: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DISTLOCK_BROWSER = {"DATABASE": "default"}
    monkeypatch.setitem(sys.modules, checks.ADDRESSES, sys)
    assert ids() == ids(["default"]) == ids(["postgres"]) == ids([]) == []
    for owner, name, value, found in (
        (router, "allow_migrate", lambda *args, **hints: False, "distlock.W081"),
        (connections["default"], "vendor", "oracle", "distlock.W080"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert ids() == [found]
            assert ids(["default"]) == listing.databases() == []
    with monkeypatch.context() as patch:
        patch.setattr(connections["default"].introspection, "table_names", lambda cursor: ["django_migrations"])
        assert ids(["default"]) == ["distlock.E082"] * 2
        patch.setattr(MigrationRecorder, "applied_migrations", lambda recorder: {})
        assert ids(["default"]) == []  # an error would stop the first migrate
