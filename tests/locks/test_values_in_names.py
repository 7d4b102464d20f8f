"""Values whose text is no name: another one for each caller, or the same one for callers with nothing in common."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.http import QueryDict
from django.test import RequestFactory
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy

from django_distlock import advisory_lock, row_lock
from django_distlock.browser import requires_lock
from tests.locks.elsewhere import is_free


class Lines:
    def __init__(self, *lines: Any) -> None:
        self.lines = lines

    def __repr__(self) -> str:
        return f"Lines{self.lines!r}"


def at(template: str) -> Any:
    return advisory_lock(template, using="memory", timeout=0)


def settle(account: Any) -> str:
    return "done"


# With a text that differs, two callers who mean one account would be inside at once; with one that all share, as the
# last four, strangers would wait for each other.
REFUSED: dict[str, Any] = {
    "object": object(),
    "function": settle,
    "method": Lines(object()).__init__,
    "generator": (number for number in range(1)),
    "inside a list": [object()],
    "inside an object": Lines(object()),
    "set": {"a", "b"},
    "dict": {"a": 1, "b": 2},
    "query": QueryDict("a=1"),
    "of a language": gettext_lazy("Save"),
    "queryset": User.objects.none(),
    "manager": User.objects,
    "None": None,
    "unsaved": Group.permissions.through(),
    "anonymous": AnonymousUser(),
    "lazy anonymous": SimpleLazyObject(AnonymousUser),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_a_text_that_differs_between_callers_or_is_shared_by_all_is_refused(value: Any) -> None:
    message = r"^The lock name 'a:\{account\}' cannot be made from \{account\}: .* `with`"
    with pytest.raises(TypeError, match=message):
        at("a:{account}")(settle)(value)


def test_the_message_names_the_field_and_what_to_do() -> None:
    with pytest.raises(TypeError) as refused:
        at("cart:{account.user.pk}")(settle)(SimpleNamespace(user=AnonymousUser()))
    assert str(refused.value) == (
        "The lock name 'cart:{account.user.pk}' cannot be made from {account.user.pk}: it is None, so that all callers "
        "without a value would share one lock. Pass a value, or make the name in a `with` block."
    )
    with pytest.raises(TypeError, match=r"its text is '<object object at 0x[0-9a-f]+>', which differs between"):
        at("{account}")(settle)(object())


NAMES: list[tuple[Any, str]] = [
    ("", ""),
    ("meet at 0x7f", "meet at 0x7f"),
    (0, "0"),
    (Decimal("7.50"), "7.50"),
    (UUID(int=7), str(UUID(int=7))),
    ((1, "a"), "(1, 'a')"),
    (Lines(7), "Lines(7,)"),
    (User, "<class 'django.contrib.auth.models.User'>"),
    (User(pk=7, username="ann"), "ann"),
    (Group.permissions.through(pk=7), "Group_permissions object (7)"),
    (SimpleLazyObject(lambda: User(pk=7, username="ann")), "ann"),
]


def test_every_other_text_is_a_name() -> None:
    for value, text in NAMES:
        assert at("a:{account}")(lambda account, text=text: not is_free(f"a:{text}"))(value) is True


def test_a_key_of_a_mapping_comes_before_its_attribute() -> None:
    class Payload(dict[str, Any]):
        owner = "ann"

    held = at("a:{account.items}")(lambda account: not is_free("a:seven"))
    for payload in ({"items": "seven"}, defaultdict(list, items="seven"), QueryDict("items=six&items=seven")):
        assert held(payload) is True
    assert at("a:{account.owner}")(lambda account: not is_free("a:ann"))(Payload()) is True
    untouched: defaultdict[str, list[int]] = defaultdict(list)
    with pytest.raises(TypeError, match=r"cannot be made from \{account\.items\}"):
        at("a:{account.items}")(settle)(untouched)
    assert not untouched


def test_browser_and_row_locks() -> None:
    """A page that has logged out in another tab gets no incident, and not the lock of all strangers."""
    view = requires_lock("cart:{request.user.pk}")(lambda request: None)
    request = RequestFactory().post("/", headers={"Distlock-Lease": f"{'0' * 32};1"})
    request.user = AnonymousUser()
    answer: Any = view(request)
    assert (answer.status_code, json.loads(answer.content)["reason"]) == (423, "lost")
    for account in (User(), {"pk": None}):
        with pytest.raises(ValueError, match="pk must not be None"):
            row_lock(User, pk="account.pk")(settle)(account)
