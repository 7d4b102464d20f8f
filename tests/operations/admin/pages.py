"""People, the addresses that they ask for, and what stands there, read as a person would."""

from __future__ import annotations

import re
from html import unescape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.contrib.sessions.models import Session
from django.urls import reverse

if TYPE_CHECKING:
    from django.http import HttpResponse
    from django.test import Client

LIST = reverse("admin:django_distlock_heldlock_changelist")
BREAK = reverse("admin:django_distlock_heldlock_break")
ALIASES = settings.DISTLOCK  # all of them
PEOPLE = {
    "nobody": [],
    "viewer": ["view_heldlock"],
    "breaker": ["break_lock"],
    "both": ["view_heldlock", "break_lock"],
    "boss": [],  # who is a superuser
}
_CELL = re.compile(r'<t[hd] class="field-(\w+)"[^>]*>(.*?)</t[hd]>', re.DOTALL)


def log_in(client: Client, name: str) -> Client:
    """As one of the people, who is made if need be; "anonymous" is none."""
    if name != "anonymous":
        user, _ = User.objects.get_or_create(username=name, is_staff=True, is_superuser=name == "boss")
        may = Permission.objects.filter(content_type__app_label="django_distlock", codename__in=PEOPLE[name])
        user.user_permissions.set(may)
        client.force_login(user)
    return client


def remove_people() -> None:
    LogEntry.objects.all().delete()
    Session.objects.all().delete()
    User.objects.filter(username__in=PEOPLE).delete()


def text(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def told(answer: HttpResponse) -> list[str]:
    """The messages that a person is shown next."""
    return [str(message) for message in get_messages(answer.wsgi_request)]


def rows(html: str) -> list[dict[str, str]]:
    """The rows of the list: column -> text. Below it are tables of what users have locked, of other tests perhaps."""
    body = html.partition('id="result_list"')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    return [{column: text(cell) for column, cell in _CELL.findall(row)} for row in body.split("<tr>")[1:]]


def names(client: Client, query: str = "") -> list[str]:
    """The names on the list with a query, in order."""
    answer = client.get(f"{LIST}?{query}")
    assert answer.status_code == 200, f"{answer.status_code} {answer.headers}"
    return [row["name"] for row in rows(answer.text)]


def address(client: Client, name: str, what: str = "change") -> str:
    """The page of a held lock, as the list links to it, or the question before it is broken."""
    page = client.get(f"{LIST}?q={quote(name, safe='')}").text
    (found,) = re.findall(rf'href="({LIST}[^"/]+/)change/[^"]*" id="[^"]*"><bdi>{re.escape(name)}<', page)
    return f"{found}{what}/"


def chosen(*addresses: str) -> dict[str, Any]:
    """What the list sends when the boxes before these locks are ticked and the button is pressed."""
    return {"selected": [unquote(each.removeprefix(LIST).partition("/")[0]) for each in addresses]}


def shown(client: Client, name: str) -> str:
    """What the question sends back when it is answered with yes."""
    (found,) = re.findall(r'name="lock" value="([^"]+)"', client.get(address(client, name, "break")).text)
    return unescape(found)
