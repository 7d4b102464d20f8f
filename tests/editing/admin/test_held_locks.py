"""Edit locks on the page of held locks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.urls import reverse

from tests.editing.admin.test_change import address
from tests.editing.people import is_held

if TYPE_CHECKING:
    from testproject.articles.models import Article
    from tests.editing.people import Person

LIST = reverse("admin:django_distlock_heldlock_changelist")
BREAK = reverse("admin:django_distlock_heldlock_break_edit")


@pytest.fixture(autouse=True)
def one_alias(settings: Any) -> None:
    """The list asks every alias: those that need a server have tests of their own."""
    settings.DISTLOCK = {"default": {"BACKEND": "django_distlock.backends.memory.MemoryBackend"}}


def test_names_are_for_those_who_may_see_the_object(ada: Person, bo: Person, boss: Person, article: Article) -> None:
    assert "distlock-edits" not in boss.client.get(LIST).content.decode()
    ada.claim(ada.open(address(article))["distlock_edit"])
    text = boss.client.get(LIST).content.decode()
    assert f'<a href="{address(article)}"><bdi>A bridge opens</bdi></a>' in text
    assert "<td><bdi>Ada</bdi></td>" in text
    bo.user.user_permissions.set(Permission.objects.filter(codename="view_heldlock"))
    text = bo.client.get(LIST).content.decode()
    assert "A bridge opens" not in text
    assert "Ada" in text
    assert "Break this edit lock" not in text
    assert bo.client.post(BREAK, {}).status_code == 403


def test_breaking(ada: Person, boss: Person, article: Article) -> None:
    grant = ada.open(address(article))["distlock_edit"]
    lease = ada.claim(grant)
    text = boss.client.get(LIST).content.decode().partition("distlock-edits")[2]
    shown = dict(re.findall(r'<input type="hidden" name="(database|model|pk|fence)" value="([^"]*)">', text))
    sent = {"reason": "gone\nhome", **shown}
    assert boss.client.post(BREAK, {**sent, "fence": "999"}).status_code == 302
    assert is_held(article)
    assert boss.client.post(BREAK, sent).status_code == 302
    assert not is_held(article)
    assert ada.ask("renew", grant, lease=lease)["reason"] == "broken"
    assert "gone home" in LogEntry.objects.get().change_message
    assert boss.client.post(BREAK, {**sent, "database": "none"}).status_code == 403
    assert boss.client.get(BREAK).status_code == 403
