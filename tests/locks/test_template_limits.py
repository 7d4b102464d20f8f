"""What a lock name with {fields} cannot reach, as the documentation says."""

from __future__ import annotations

import asyncio
import functools
from types import SimpleNamespace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import SynchronousOnlyOperation
from django.utils.functional import SimpleLazyObject

from tests.locks.elsewhere import is_free
from tests.locks.test_templates import at, check


def test_argument_that_a_decorator_below_injects_is_not_seen() -> None:
    """functools.wraps shows the signature with it, the call does not have it; below that decorator the lock sees it."""

    def injects(function: Any) -> Any:
        @functools.wraps(function)
        def inner(request: Any) -> Any:
            return function(request, account=7)

        return inner

    def view(request: Any, account: int) -> int:
        return account

    with pytest.raises(TypeError, match="missing a required argument: 'account'"):
        at("{account}")(injects(view))(None)
    assert is_free("7")
    check(injects(at("{account}")(view)), "7", None)


def test_field_that_asks_the_database_is_refused_in_an_async_view(databases: None) -> None:
    """Names are made on the event loop; with the user awaited before, or taken from the URL, nothing is asked there."""

    @at("{request.user.pk}")
    async def view(request: Any) -> None: ...

    request: Any = SimpleNamespace(user=SimpleLazyObject(lambda: User.objects.first() or User(pk=7)))
    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(view(request))
    request.user = User(pk=7)
    asyncio.run(view(request))
