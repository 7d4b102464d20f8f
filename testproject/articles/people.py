"""The two people of the scene may edit articles in the admin, and nothing else."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import Permission

from testproject import people
from testproject.people import PEOPLE

__all__ = ["PEOPLE", "person"]


def person(slug: str) -> Any:
    """The user of that name, made when first asked for. KeyError for any other name."""
    user = people.person(slug)
    if not user.is_staff:
        user.is_staff = True
        user.save()
        user.user_permissions.set(Permission.objects.filter(content_type__app_label="articles"))
    return user
