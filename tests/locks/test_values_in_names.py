"""Values whose text is no name: another one for each caller, or the same one for callers with nothing in common."""

from __future__ import annotations

import asyncio
import functools
import json
from collections import UserDict, defaultdict
from datetime import date
from decimal import Decimal
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.http import QueryDict
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy

from django_distlock import LockNotAcquired, advisory_lock, lock_all, row_lock, semaphore
from django_distlock.browser import requires_lock
from tests.locks.elsewhere import held_elsewhere, is_free

if TYPE_CHECKING:
    from collections.abc import Callable

RECIPES: dict[str, Callable[[str], Any]] = {
    "advisory_lock": lambda name: advisory_lock(name, using="memory", timeout=0),
    "lock_all": lambda name: lock_all(["other", name], using="memory", timeout=0),
    "semaphore": lambda name: semaphore(name, 1, using="memory", timeout=0),
}
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


class Plain:
    """An object without a text of its own."""


class Lines:
    def __init__(self, *lines: Any) -> None:
        self.lines = lines

    def __repr__(self) -> str:
        return f"Lines{self.lines!r}"


def at(template: str) -> Any:
    return advisory_lock(template, using="memory", timeout=0)


def settle(account: Any) -> str:
    return "done"


ANOTHER_FOR_EACH: dict[str, Any] = {
    "object": Plain(),
    "function": settle,
    "lambda": lambda: None,
    "method": Plain().__init__,
    "builtin": {}.items,
    "partial": functools.partial(settle),
    "generator": (number for number in range(1)),
    "memoryview": memoryview(b"x"),
    "inside a list": [Plain()],
    "inside an object": Lines(Plain()),
    "set": {"a", "b"},
    "frozenset": frozenset({"a", "b"}),
    "keys": {"a": 1}.keys(),
    "dict": {"a": 1, "b": 2},
    "query": QueryDict("a=1"),
    "of a language": gettext_lazy("Save"),
    "queryset": User.objects.none(),
    "manager": User.objects,
}
SHARED_BY_ALL: dict[str, Any] = {
    "None": None,
    "unsaved": Group.permissions.through(),
    "anonymous": AnonymousUser(),
    "lazy anonymous": SimpleLazyObject(AnonymousUser),
}


@every_recipe
@pytest.mark.parametrize("value", [*ANOTHER_FOR_EACH.values()], ids=[*ANOTHER_FOR_EACH])
def test_a_text_that_differs_between_callers_is_refused(recipe: Any, value: Any) -> None:
    """With it two callers who mean one account would be inside at once."""
    with pytest.raises(TypeError, match=r"^The lock name 'a:\{account\}' cannot be made from \{account\}: .* `with`"):
        recipe("a:{account}")(settle)(value)


@every_recipe
@pytest.mark.parametrize("value", [*SHARED_BY_ALL.values()], ids=[*SHARED_BY_ALL])
def test_a_text_that_all_callers_share_is_refused(recipe: Any, value: Any) -> None:
    """With it strangers would wait for each other."""
    with pytest.raises(TypeError, match=r"^The lock name 'a:\{account\}' cannot be made from \{account\}: .* `with`"):
        recipe("a:{account}")(settle)(value)


def test_the_message_names_the_field_and_what_to_do() -> None:
    with pytest.raises(TypeError) as refused:
        at("cart:{account.user.pk}")(settle)(SimpleNamespace(user=AnonymousUser()))
    assert str(refused.value) == (
        "The lock name 'cart:{account.user.pk}' cannot be made from {account.user.pk}: it is None, so that all callers "
        "without a value would share one lock. Pass a value, or make the name in a `with` block."
    )
    with pytest.raises(TypeError, match=r"its text is '<.*Plain object at 0x[0-9a-f]+>', which differs between"):
        at("{account}")(settle)(Plain())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", ""),
        ("None", "None"),
        ("meet at 0x7f", "meet at 0x7f"),
        (0, "0"),
        (False, "False"),
        (7.5, "7.5"),
        (Decimal("7.50"), "7.50"),
        (date(2026, 1, 2), "2026-01-02"),
        (UUID(int=7), str(UUID(int=7))),
        ((1, "a"), "(1, 'a')"),
        ([1, 2], "[1, 2]"),
        (Lines(7), "Lines(7,)"),
        (User, "<class 'django.contrib.auth.models.User'>"),
        (User(pk=7, username="ann"), "ann"),
        (User(username="ann"), "ann"),
        (Group.permissions.through(pk=7), "Group_permissions object (7)"),
        (SimpleLazyObject(lambda: User(pk=7, username="ann")), "ann"),
    ],
)
def test_every_other_text_is_a_name(value: Any, text: str) -> None:
    with held_elsewhere(f"a:{text}"), pytest.raises(LockNotAcquired):
        at("a:{account}")(settle)(value)
    assert at("a:{account}")(settle)(value) == "done"


@pytest.mark.parametrize(
    "payload",
    [
        {"items": "seven"},
        MappingProxyType({"items": "seven"}),
        UserDict(items="seven"),
        defaultdict(list, items="seven"),
        QueryDict("items=six&items=seven"),
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_a_key_of_a_mapping_comes_before_its_attribute(payload: Any) -> None:
    with held_elsewhere("a:seven"), pytest.raises(LockNotAcquired):
        at("a:{account.items}")(settle)(payload)


def test_a_mapping_still_has_attributes() -> None:
    class Payload(dict[str, Any]):
        owner = "ann"

    assert at("a:{account.owner}")(lambda account: is_free("a:ann"))(Payload()) is False
    untouched: defaultdict[str, list[int]] = defaultdict(list)
    with pytest.raises(TypeError, match=r"cannot be made from \{account\.items\}"):
        at("a:{account.items}")(settle)(untouched)
    assert not untouched


def test_methods_and_async_functions() -> None:
    class Account:
        pk = None

        @at("a:{self.pk}")
        def settle(self) -> None: ...

        @at("a:{self.pk}")
        async def asettle(self) -> None: ...

        @method_decorator(at("a:{pk}"))
        def hidden(self, pk: Any) -> None: ...

    for call in (Account().settle, lambda: asyncio.run(Account().asettle()), lambda: Account().hidden(None)):
        with pytest.raises(TypeError, match="it is None"):
            call()


def test_browser_locks() -> None:
    """A page that has logged out in another tab gets no incident, and not the lock of all strangers."""
    view = requires_lock("cart:{request.user.pk}")(lambda request: None)
    request = RequestFactory().post("/", headers={"Distlock-Lease": f"{'0' * 32};1"})
    request.user = AnonymousUser()
    answer: Any = view(request)
    assert (answer.status_code, json.loads(answer.content)["reason"]) == (423, "lost")


def test_row_locks() -> None:
    settled = row_lock(User, pk="account.pk")(settle)
    with pytest.raises(ValueError, match="pk must not be None"):
        settled(User())
    with pytest.raises(ValueError, match="pk must not be None"):
        settled({"pk": None})
