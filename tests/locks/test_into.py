"""``into``: the decorated function gets its lease as the argument of that name, and callers leave it out."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.decorators import method_decorator

from django_distlock import Lease, LeaseSet, LockNotHeld, advisory_lock, lock_all, row_lock, semaphore
from tests.data.app.models import Account
from tests.locks.elsewhere import held_elsewhere, is_free

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "decorators:into"
RECIPES: dict[str, Callable[..., Any]] = {
    "advisory_lock": lambda **options: advisory_lock(NAME, using="memory", timeout=0, **options),
    "lock_all": lambda **options: lock_all([NAME, NAME + "2"], using="memory", timeout=0, **options),
    "semaphore": lambda **options: semaphore(NAME, 1, using="memory", timeout=0, **options),
}
LOCK = RECIPES["advisory_lock"](into="lease")


@pytest.mark.parametrize("kind", RECIPES)
def test_function_gets_the_lease_of_its_call(kind: str) -> None:
    """Of two calls two leases, each held inside and released afterwards; sync, async, and by ``**kwargs``."""
    recipe = RECIPES[kind](into="lease")
    seen: list[Any] = []

    @recipe
    def work(pk: int, lease: Any, **more: int) -> int:
        lease.ensure_held()
        seen.append(lease)
        return pk

    @recipe
    async def awork(pk: int, *, lease: Any) -> int:
        return work.__wrapped__(pk, lease)  # type: ignore[attr-defined, no-any-return]

    anything = recipe(lambda **given: work.__wrapped__(**given))  # type: ignore[attr-defined]
    assert (work(1), work(pk=2, more=3), asyncio.run(awork(4)), anything(pk=5)) == (1, 2, 4, 5)  # type: ignore[call-arg]
    assert len({id(lease) for lease in seen}) == 4
    assert {type(lease) for lease in seen} == {LeaseSet if kind == "lock_all" else Lease}
    for lease in seen:
        with pytest.raises(LockNotHeld):
            lease.ensure_held()


@pytest.mark.parametrize("decorate", [*RECIPES.values(), functools.partial(row_lock, Account.objects.all())])
def test_function_without_such_an_argument_is_refused_at_decoration(decorate: Any) -> None:
    """In the words of row_lock."""

    def positional(pk: int, lease: Any, /) -> None: ...

    def before(lease: Any, pk: int) -> None: ...

    def variable(lease: Any, *pks: int) -> None: ...

    recipe = decorate(into="lease")
    for function in (positional, before, variable):
        with pytest.raises(
            ValueError, match=r"^into is 'lease', which is passed by its name: make it the last argument"
        ):
            recipe(function)
    for function in (lambda pk: pk, lambda pk, *leases: pk):
        with pytest.raises(ValueError, match=r"^into is 'lease', but '.*<lambda>' has no argument 'lease'; it has pk"):
            recipe(function)
    with pytest.raises(TypeError, match=r"^into must be a str or None, not int\.$"):
        decorate(into=1)


def test_signature_for_callers_does_not_have_it() -> None:
    """Task queues and routers ask for it. A field of the name cannot be it, and a caller cannot give it."""

    @LOCK
    def work(pk: int, lease: Any) -> bool:
        return bool(lease.held)

    assert list(inspect.signature(work).parameters) == ["pk"]
    assert work(7) is True  # type: ignore[call-arg]
    assert advisory_lock("{pk}", using="memory")(work)(7) is True  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values for keyword argument 'lease'"):
        work(7, lease=None)
    assert is_free(NAME)
    with pytest.raises(ValueError, match=r"has no argument 'lease'; it has pk\.$"):
        advisory_lock("{lease}", using="memory", into="lease")(lambda pk, lease: pk)


def test_methods_stacked_locks_and_a_busy_lock() -> None:
    class Ledger:
        @LOCK
        def close(self, lease: Any) -> str:
            return str(lease.name)

        @classmethod
        @LOCK
        def open(cls, lease: Any) -> str:
            return str(lease.name)

        @method_decorator([advisory_lock("{pk}", using="memory", into="other"), LOCK])
        def both(self, pk: str, *, other: Any, lease: Any) -> tuple[str, str]:
            return other.name, lease.name

    ledger: Any = Ledger()
    assert (ledger.close(), Ledger.open()) == (NAME, NAME)  # type: ignore[call-arg]
    assert ledger.both("7") == ("7", NAME)
    instead = RECIPES["advisory_lock"](into="lease", on_busy=lambda *args: ("busy", args))(lambda pk, lease: pk)
    with held_elsewhere(NAME):
        assert instead(7) == ("busy", (7,))


def test_blocks_have_as_and_ignore_it_and_a_set_has_its_own() -> None:
    with LOCK as lease:
        assert lease.held
    for other in (copy.copy(LOCK), LOCK.formatted({})):
        assert other(lambda lease: lease.name)() == NAME
    with pytest.raises(ValueError, match="give it to lock_all"):
        lock_all([LOCK])
