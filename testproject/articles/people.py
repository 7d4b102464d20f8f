"""The two people of the scene. In a demo they need no password; they may edit articles and nothing else."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission

PEOPLE = {"ada": "Ada", "bo": "Bo"}


def person(slug: str) -> Any:
    """The user of that name, made when first asked for. KeyError for any other name."""
    user, made = get_user_model().objects.get_or_create(
        username=slug, defaults={"first_name": PEOPLE[slug], "is_staff": True}
    )
    if made:
        user.set_unusable_password()
        user.save()
        user.user_permissions.set(Permission.objects.filter(content_type__app_label="articles"))
    return user
