"""Lock names with {fields}: what is refused when the function is decorated, what a call fills in, and values whose text
is no name: another one for each caller, or the same one for callers with nothing in common."""

from __future__ import annotations

import asyncio
import functools
import inspect
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
from django.utils.decorators import method_decorator
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy

from django_distlock import LockNotAcquired, advisory_lock, lock_all, row_lock, semaphore
from django_distlock.browser import requires_lock
from tests.locks.elsewhere import held_elsewhere, is_free


def at(template: str, **rest: Any) -> Any:
    return advisory_lock(template, using="memory", timeout=0, **rest)


def settle(pk: Any, amount: Any = 5, *, note: Any = "none") -> str:
    return "done"


def check(locked: Any, name: str, *args: Any, **kwargs: Any) -> None:
    """The call takes exactly ``name``."""
    with held_elsewhere(name), pytest.raises(LockNotAcquired) as refused:
        locked(*args, **kwargs)
    assert str(refused.value) == f"The lock {name!r} of alias 'memory' is held by another caller."
    locked(*args, **kwargs)
    assert is_free(name)


def test_wrong_templates_are_refused_at_decoration() -> None:
    for template in ("{id}", "account:{id}:{pk}", "{pk}{nothing.at.all}", "{self.pk}"):
        with pytest.raises(ValueError, match=r"'settle' has no argument '\w+'; it has pk, amount, note\.$") as refused:
            at(template)(settle)
        assert str(refused.value).startswith(f"The lock name {template!r} has the field {{")
        with pytest.raises(ValueError, match=r"has no argument '\w+'; it has none\.$"):
            at(template)(lambda *args: None)
    for field in ("", "0", "pk[0]", "pk!r", "pk:04d", "pk:{note}", "pk.", ".pk", "pk..x", " pk", "pk-1"):
        with pytest.raises(ValueError, match="a field is the name of an argument with a dotted path, without index"):
            at(f"{{{field}}}")(settle)


def test_loose_braces() -> None:
    """Each kind of lock refuses them at decoration, also where the signature is not known yet; outside of decorators
    braces are literal."""
    for template in ("{", "}", "a{pk", "a}b", "{pk}}", "{{pk}"):
        recipes = (at(template), lock_all(["x", template], using="memory"), semaphore(template, 2, using="memory"))
        for decorator in (*recipes, method_decorator(recipes[0])):
            with pytest.raises(ValueError, match=r"is no template: .* Write \{\{ and \}\} for braces\.$") as refused:
                decorator(settle)
            assert repr(template) in str(refused.value)
        with at(template), lock_all([template + "x"], using="memory"):
            assert not is_free(template)
            assert not is_free(template + "x")


FILLED: list[tuple[str, tuple[Any, ...], str]] = [
    ("{pk}:{amount}:{note}", (7,), "7:5:none"),
    ("{{pk}}:{pk}{pk}", (7,), "{pk}:77"),
    ("{{{pk}}}", (7,), "{7}"),
    ("{pk.a.b}", ({"a": {"b": "keys"}},), "keys"),
    ("{pk.a.b}", ({"a": SimpleNamespace(b="mixed too")},), "mixed too"),
    ("{pk}", ("{note}",), "{note}"),
    ("n\u00e4me \U0001f512:{pk}", ("\u00fc",), "n\u00e4me \U0001f512:\u00fc"),
    ("{pk}", ("\ud800\x00",), "\ud800\x00"),
]


def test_fields_are_filled() -> None:
    for template, args, name in FILLED:
        check(at(template)(settle), name, *args)


def test_what_a_call_cannot_fill() -> None:
    for value in (SimpleNamespace(), {}, None, 7, []):
        with pytest.raises(TypeError, match=r"^The lock name '\{pk\.no\}' needs \{pk\.no\}, which this call does"):
            at("{pk.no}")(settle)(value)
    with pytest.raises(ValueError, match="name must have at most 512 characters"):
        at("{pk}")(settle)("x" * 513)
    with pytest.raises(TypeError, match="missing a required argument: 'pk'"):
        at("{pk}")(settle)()
    with pytest.raises(TypeError, match="unexpected keyword argument 'nobody'"):
        at("{pk}")(settle)(1, nobody=2)


def test_self_is_an_argument_like_any_other_unless_it_is_bound() -> None:
    class Account:
        def __init__(self, pk: int) -> None:
            self.pk = pk

        @at("{self.pk}:{amount}")
        def pay(self, amount: int) -> None: ...

        @classmethod
        @at("{cls.__name__}:{amount}")
        def tell(cls, amount: int) -> None: ...

        def plain(self, amount: int) -> None: ...

        @at("{self.pk}")
        async def apay(self) -> None: ...

    check(lambda: asyncio.run(Account(7).apay()), "7")
    check(Account(7).pay, "7:3", 3)
    check(Account.pay, "7:3", Account(7), amount=3)
    check(Account.tell, "Account:3", 3)
    check(at("{amount}")(Account(7).plain), "3", 3)
    with pytest.raises(ValueError, match=r"has no argument 'self'; it has amount\.$"):
        at("{self}")(Account(7).plain)


class Hidden:
    """Django hides the signature: what is decorated is a partial with self bound, made anew for each call."""

    @method_decorator(at("{amount}"))
    def wrong(self, pk: int) -> None: ...

    @method_decorator(at("{pk}:{extra}"))
    def open(self, pk: int, **kwargs: Any) -> None: ...

    @method_decorator([at("one:{pk}"), at("two:{pk}:{note}")])
    def both(self, pk: int, note: str = "none") -> None: ...


def test_hidden_signature_is_filled_and_checked_at_the_first_call() -> None:
    hidden = Hidden()
    check(hidden.open, "7:8", 7, extra=8)
    check(hidden.both, "one:7", 7)
    check(hidden.both, "two:7:x", pk=7, note="x")
    with pytest.raises(ValueError, match=r"has no argument 'amount'; it has pk\.$"):
        hidden.wrong(7)
    with pytest.raises(TypeError, match="which this call does not have"):
        hidden.open(7)


def test_the_signature_that_is_declared_or_left_counts() -> None:
    """``__signature__``, as libraries set it on wrappers, functools.wraps, and a partial; variable arguments have no
    name and hide none."""

    def take(*args: Any, **kwargs: Any) -> None: ...

    def pay(pk: int, /, **kwargs: Any) -> None: ...

    declared, wrapper = functools.partial(take), functools.wraps(settle)(lambda *args, **kwargs: None)
    declared.__signature__ = inspect.signature(settle)  # type: ignore[attr-defined]
    for function in (declared, wrapper, functools.partial(settle, amount=9)):
        with pytest.raises(ValueError, match="has no argument 'id'"):
            at("{id}")(function)
        check(at("{pk}")(function), "7", 7)
    check(at("{amount}:{note}")(functools.partial(settle, 7)), "5:none")
    check(at("{pk}")(pay), "7", 7, pk=8)
    with pytest.raises(TypeError, match="which this call does not have"):
        at("{args}")(take)(1, x=2)


def test_recipe_with_fields_is_left_as_it_was() -> None:
    """One recipe for several functions, and for calls in turn; its other settings survive."""
    lock = at("{pk}", shared=True, ttl=7, on_busy="skip")
    first, second = lock(settle), lock(lambda pk: pk)
    with held_elsewhere("7"):
        assert first(7) is second(7) is None
        assert first(8) == "done"
    with advisory_lock("7", using="memory", shared=True):
        assert first(7) == "done"
    assert lock.name == "{pk}"
    both = lock_all(["{pk}", at("{amount}", shared=True)], using="memory", timeout=0)(settle)
    with held_elsewhere("5"), pytest.raises(LockNotAcquired):
        both(7)
    slots = semaphore("{pk}", 1, using="memory", timeout=0)
    with semaphore("7", 1, using="memory"), pytest.raises(LockNotAcquired):
        slots(settle)(7)


class Lines:
    def __init__(self, *lines: Any) -> None:
        self.lines = lines

    def __repr__(self) -> str:
        return f"Lines{self.lines!r}"


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
    """In words that name the field and the cure."""
    message = r"^The lock name 'a:\{pk\}' cannot be made from \{pk\}: .* `with`"
    with pytest.raises(TypeError, match=message):
        at("a:{pk}")(settle)(value)


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
        assert at("a:{pk}")(lambda pk, text=text: not is_free(f"a:{text}"))(value) is True


def test_a_key_of_a_mapping_comes_before_its_attribute() -> None:
    class Payload(dict[str, Any]):
        owner = "ann"

    held = at("a:{pk.items}")(lambda pk: not is_free("a:seven"))
    for payload in ({"items": "seven"}, defaultdict(list, items="seven"), QueryDict("items=six&items=seven")):
        assert held(payload) is True
    assert at("a:{pk.owner}")(lambda pk: not is_free("a:ann"))(Payload()) is True
    untouched: defaultdict[str, list[int]] = defaultdict(list)
    with pytest.raises(TypeError, match=r"cannot be made from \{pk\.items\}"):
        at("a:{pk.items}")(settle)(untouched)
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
            row_lock(User, pk="pk.pk")(settle)(account)
