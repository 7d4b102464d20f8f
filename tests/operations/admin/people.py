"""People with different permissions, and the addresses that they ask for."""

from __future__ import annotations

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.urls import reverse

LIST = reverse("admin:django_distlock_heldlock_changelist")
BREAK = reverse("admin:django_distlock_heldlock_break")

PEOPLE: dict[str, tuple[str, ...]] = {
    "nobody": (),
    "viewer": ("view_heldlock",),
    "breaker": ("break_lock",),
    "both": ("view_heldlock", "break_lock"),
}


def make_people() -> dict[str, User]:
    found = {}
    for name, codenames in PEOPLE.items():
        found[name] = User.objects.create(username=name, password="!", is_staff=True)
        found[name].user_permissions.set(
            Permission.objects.filter(content_type__app_label="django_distlock", codename__in=codenames)
        )
    found["boss"] = User.objects.create(username="boss", password="!", is_staff=True, is_superuser=True)
    return found


def remove_people() -> None:
    LogEntry.objects.all().delete()
    Session.objects.all().delete()
    User.objects.filter(username__in=[*PEOPLE, "boss"]).delete()
