"""Helpers for tests of pages with edit locks. See docs/editing/index.md."""

from __future__ import annotations

import re
import secrets
from contextlib import contextmanager
from html import unescape
from typing import TYPE_CHECKING, Any

from django_distlock.http.visitors import principal_of_user
from django_distlock.leases import rows
from django_distlock.leases.records import Busy

from .conf import config
from .http.forms import CHOICE_FIELD, FIELDS
from .records import Owner
from .resources import resource_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model
    from django.http import HttpResponse

_INPUT = re.compile(r"<input\b[^>]*>")
_ATTRIBUTE = re.compile(r'\b(name|value)="([^"]*)"')


def edit_fields(response: HttpResponse) -> dict[str, str | list[str]]:
    """The hidden fields of edit locks in a page, as a test posts them back.

    ::

        page = client.get(url)
        client.post(url, {**edit_fields(page), "title": "New"})

    A field that is there several times, as in an editable list of the admin, is a list.
    """
    found: dict[str, list[str]] = {}
    for tag in _INPUT.findall(response.content.decode(response.charset)):
        attributes = dict(_ATTRIBUTE.findall(tag))
        if attributes.get("name") in FIELDS and attributes["name"] != CHOICE_FIELD:  # an unticked box
            found.setdefault(attributes["name"], []).append(unescape(attributes.get("value", "")))
    return {name: values if len(values) > 1 else values[0] for name, values in found.items()}


@contextmanager
def being_edited(obj: Model, *, by: Any = "another user") -> Iterator[str]:
    """Let another user edit ``obj`` inside the block. ``by`` is a user or a label; the value is the id of the lease.

    AssertionError if the object is being edited already.
    """
    is_user = hasattr(by, "is_authenticated")
    principal = principal_of_user(by) if is_user else f"test:{by}"
    label = config().label_of(by) if is_user else str(by)
    resource, lease = resource_of(obj), secrets.token_hex(16)
    found = rows.take("claim", resource, Owner(principal, label), lease, 3600)
    if isinstance(found, Busy):
        raise AssertionError(f"{resource.model} {resource.pk} is being edited already.")
    try:
        yield lease
    finally:
        rows.release(resource, lease)


def is_being_edited(obj: Model) -> bool:
    """True if a user edits the object now."""
    row = rows.read_one(resource_of(obj))
    return row is not None and row.held
