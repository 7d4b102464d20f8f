"""Views that begin their own transactions: a lock has to be taken before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from django.db import connections, transaction

V = TypeVar("V", bound=Callable[..., Any])


class EveryAlias(set[str]):
    """For ``view._non_atomic_requests``: ATOMIC_REQUESTS of no database applies.

    In a transaction that has read before the locks were taken, the version would be that of an old snapshot.
    """

    def __contains__(self, alias: object) -> bool:
        return True


def outside_transactions(view: V) -> V:
    """Take the view out of ATOMIC_REQUESTS."""
    view._non_atomic_requests = EveryAlias()  # type: ignore[attr-defined]
    return view


@contextmanager
def transactions_of_request(but: Collection[str] = ()) -> Iterator[None]:
    """The transactions of ATOMIC_REQUESTS, without those of the databases ``but``, where a save has its own."""
    with ExitStack() as stack:
        for alias, entry in connections.settings.items():
            if entry["ATOMIC_REQUESTS"] and alias not in but:
                stack.enter_context(transaction.atomic(using=alias))
        yield
