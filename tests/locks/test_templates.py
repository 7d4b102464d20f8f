"""Lock names with {fields}: what is refused when the function is decorated, and what a call fills in."""

from __future__ import annotations

import asyncio
import functools
import inspect
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.decorators import method_decorator

from django_distlock import LockNotAcquired, advisory_lock, lock_all, semaphore
from tests.locks.elsewhere import held_elsewhere, is_free

if TYPE_CHECKING:
    from collections.abc import Callable


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


@pytest.mark.parametrize("argument", ["{id}", "account:{id}:{pk}", "{pk}{nothing.at.all}", "{self.pk}"])
def test_unknown_field_at_decoration(argument: str) -> None:
    with pytest.raises(ValueError, match=r"'settle' has no argument '\w+'; it has pk, amount, note\.$") as refused:
        at(argument)(settle)
    assert str(refused.value).startswith(f"The lock name {argument!r} has the field {{")


def test_unknown_field_of_a_function_without_arguments() -> None:
    with pytest.raises(ValueError, match=r"has no argument 'pk'; it has none\.$"):
        at("{pk}")(lambda: None)


@pytest.mark.parametrize("field", ["args", "pk"])
def test_variable_arguments_have_no_name(field: str) -> None:
    def take(*args: Any) -> None: ...

    with pytest.raises(ValueError, match="it has none"):
        at(f"{{{field}}}")(take)


@pytest.mark.parametrize(
    "template",
    ["{}", "{0}", "{pk[0]}", "{pk!r}", "{pk:04d}", "{pk.}", "{.pk}", "{pk..x}", "{pk x}", "{pk-1}", "{pk()}"],
)
def test_what_is_no_field(template: str) -> None:
    with pytest.raises(ValueError, match="a field is the name of an argument with a dotted path, without index"):
        at(template)(settle)


@pytest.mark.parametrize("template", ["{", "}", "a{pk", "a}b", "{{}", "{pk}}", "{pk{amount}}"])
def test_broken_braces(template: str) -> None:
    with pytest.raises(ValueError, match=r"is no template|a field is the name") as refused:
        at(template)(settle)
    assert repr(template) in str(refused.value)


@pytest.mark.parametrize("recipe", [lambda t: lock_all(["x", t], using="memory"), lambda t: semaphore(t, 2)])
def test_every_recipe_is_checked_at_decoration(recipe: Callable[[str], Any]) -> None:
    with pytest.raises(ValueError, match="has no argument 'id'"):
        recipe("account:{id}")(settle)
    with pytest.raises(ValueError, match="is no template"):
        recipe("account:{id")(settle)


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "name"),
    [
        ("account:{pk}", (7,), {}, "account:7"),
        ("account:{pk}", (), {"pk": 7}, "account:7"),
        ("{pk}:{amount}:{note}", (7,), {}, "7:5:none"),
        ("{pk}:{amount}:{note}", (7, 8), {"note": "x"}, "7:8:x"),
        ("{pk}{pk}", ("a",), {}, "aa"),
        ("{{pk}}:{pk}", (7,), {}, "{pk}:7"),
        ("{{", (7,), {}, "{"),
        ("{pk.a.b}", (SimpleNamespace(a=SimpleNamespace(b="deep")),), {}, "deep"),
        ("{pk.a.b}", ({"a": {"b": "keys"}},), {}, "keys"),
        ("{pk.a.b}", (SimpleNamespace(a={"b": "mixed"}),), {}, "mixed"),
        ("{pk.a.b}", ({"a": SimpleNamespace(b="mixed too")},), {}, "mixed too"),
        ("{pk}", ("{note}",), {}, "{note}"),
        ("{pk}", ("}{",), {}, "}{"),
        ("n\u00e4me \U0001f512:{pk}", ("\u00fc",), {}, "n\u00e4me \U0001f512:\u00fc"),
        ("{pk}", ("None",), {}, "None"),
        ("{pk}", (0,), {}, "0"),
    ],
)
def test_fields_are_filled(template: str, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> None:
    check(at(template)(settle), name, *args, **kwargs)


def test_attribute_comes_before_key_unless_it_is_a_mapping() -> None:
    class Both:
        left = "attribute"

        def __getitem__(self, key: str) -> str:
            return f"key {key}"

    check(at("{pk.left}")(settle), "attribute", Both())
    check(at("{pk.right}")(settle), "key right", Both())


@pytest.mark.parametrize("value", [SimpleNamespace(), {}, None, 7, "text", []])
def test_missing_step_of_a_path(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^The lock name '\{pk\.owner\}' needs \{pk\.owner\}, which this call does"):
        at("{pk.owner}")(settle)(value)


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [("", ValueError, "name must not be empty."), ("x" * 513, ValueError, "name must have at most 512 characters")],
)
def test_name_that_a_call_makes_is_validated(value: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        at("{pk}")(settle)(value)


def test_wrong_call_is_an_ordinary_type_error() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'pk'"):
        at("{pk}")(settle)()
    with pytest.raises(TypeError, match="unexpected keyword argument 'nobody'"):
        at("{pk}")(settle)(1, nobody=2)


def test_async_def_is_checked_and_filled_too() -> None:
    async def asettle(pk: Any) -> None: ...

    with pytest.raises(ValueError, match="has no argument 'id'; it has pk"):
        at("{id}")(asettle)
    locked = at("{pk.number}")(asettle)
    check(lambda *args: asyncio.run(locked(*args)), "7", SimpleNamespace(number=7))
    with pytest.raises(TypeError, match="which this call does not have"):
        asyncio.run(locked(None))


def test_self_is_an_argument_like_any_other() -> None:
    class Account:
        def __init__(self, pk: int) -> None:
            self.pk = pk

        @at("{self.pk}:{amount}")
        def pay(self, amount: int) -> None: ...

        @classmethod
        @at("{cls.__name__}:{amount}")
        def tell(cls, amount: int) -> None: ...

        @staticmethod
        @at("{amount}")
        def count(amount: int) -> None: ...

    check(Account(7).pay, "7:3", 3)
    check(Account.pay, "7:3", Account(7), amount=3)
    check(Account.tell, "Account:3", 3)
    check(Account(7).count, "3", 3)


def test_bound_method_has_dropped_self() -> None:
    class Account:
        def pay(self, amount: int) -> None: ...

    check(at("{amount}")(Account().pay), "3", 3)
    with pytest.raises(ValueError, match=r"has no argument 'self'; it has amount\.$"):
        at("{self}")(Account().pay)


class Hidden:
    """Django hides the signature: what is decorated is a partial with self bound, made anew for each call."""

    @method_decorator(at("{pk}:{note}"))
    def pay(self, pk: int, note: str = "none") -> None: ...

    @method_decorator(at("{amount}"))
    def wrong(self, pk: int) -> None: ...

    @method_decorator(at("{self.pk}"))
    def bound(self, pk: int) -> None: ...

    @method_decorator(at("{pk}:{extra}"))
    def open(self, pk: int, **kwargs: Any) -> None: ...

    @method_decorator([at("one:{pk}"), at("two:{pk}")])
    def both(self, pk: int) -> None: ...


def test_hidden_signature_is_filled() -> None:
    hidden = Hidden()
    check(hidden.pay, "7:none", 7)
    check(hidden.pay, "7:x", pk=7, note="x")
    check(hidden.open, "7:8", 7, extra=8)
    check(hidden.both, "one:7", 7)
    check(hidden.both, "two:7", 7)


def test_hidden_signature_is_checked_at_the_first_call() -> None:
    with pytest.raises(ValueError, match=r"has no argument 'amount'; it has pk\.$"):
        Hidden().wrong(7)
    with pytest.raises(ValueError, match=r"has no argument 'self'; it has pk\.$"):
        Hidden().bound(7)
    with pytest.raises(TypeError, match="which this call does not have"):
        Hidden().open(7)


def test_broken_template_on_a_hidden_signature_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="is no template"):

        @method_decorator(at("{pk"), name="dispatch")
        class Broken:
            def dispatch(self, request: Any) -> None: ...


def test_partial_has_the_signature_that_is_left() -> None:
    check(at("{amount}:{note}")(functools.partial(settle, 7)), "5:none")
    with pytest.raises(ValueError, match=r"has no argument 'pk'; it has amount, note\.$"):
        at("{pk}")(functools.partial(settle, 7))
    check(at("{pk}:{amount}")(functools.partial(settle, amount=9)), "7:9", 7)


def test_keyword_does_not_stand_in_for_a_positional_argument_of_the_same_name() -> None:
    """``pk`` is what the function calls so, not what somebody put beside it."""

    def pay(pk: int, /, **kwargs: Any) -> None: ...

    check(at("{pk}")(pay), "7", 7, pk=8)


def test_variable_arguments_are_no_field_beside_keywords() -> None:
    def take(*args: Any, **kwargs: Any) -> None: ...

    for field in ("args", "kwargs"):
        with pytest.raises(TypeError, match="which this call does not have"):
            at(f"{{{field}}}")(take)(1, x=2)
        check(at(f"{{{field}}}")(take), "7", 1, **{field: 7})


def test_declared_signature_counts() -> None:
    """``__signature__``, as libraries set it on wrappers."""

    def take(*args: Any, **kwargs: Any) -> None: ...

    take.__signature__ = inspect.signature(settle)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="has no argument 'id'"):
        at("{id}")(take)
    check(at("{pk}")(take), "7", 7)


@pytest.mark.parametrize("literal", ["a{b}", "{", "}", "{0}", "{{pk}}", "{pk!r:>5}"])
def test_braces_are_literal_outside_of_decorators(literal: str) -> None:
    with at(literal):
        assert not is_free(literal)
    lease = at(literal).acquire()
    assert lease.name == literal
    lease.release()
    with lock_all([literal], using="memory"):
        assert not is_free(literal)
    with held_elsewhere(literal):
        assert at(literal).try_acquire() is None


def test_recipe_with_fields_is_left_as_it_was() -> None:
    """One recipe for several functions, and for calls in turn."""
    lock = at("{pk}")
    first, second = lock(settle), lock(lambda pk: None)
    check(first, "1", 1)
    check(second, "2", 2)
    check(first, "3", 3)
    assert lock.name == "{pk}"


def test_other_settings_survive_the_filling() -> None:
    locked = advisory_lock("{pk}", using="memory", timeout=0, shared=True, ttl=7, on_busy="skip")(settle)
    with held_elsewhere("7"):
        assert locked(7) is None
    with advisory_lock("7", using="memory", shared=True):
        assert locked(7) == "done"
    both = lock_all(["{pk}", at("{amount}", shared=True)], using="memory", timeout=0)(settle)
    with held_elsewhere("5"), pytest.raises(LockNotAcquired):
        both(7)
    assert is_free("7")
    slots = semaphore("{pk}", 1, using="memory", timeout=0)
    with semaphore("7", 1, using="memory"):
        with pytest.raises(LockNotAcquired):
            slots(settle)(7)
        assert slots(settle)(8) == "done"
