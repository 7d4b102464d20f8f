"""Deleting what is stored of one user."""

from __future__ import annotations

from typing import Any

from .http.requests import user_label
from .storage import table_in
from .storage.database import databases, has_table


def forget_user(user: Any) -> int:
    """Delete every stored answer and key of ``user``, in each database that has the table. How many.

    A request of this user that runs at this moment keeps its key, and its answer is stored when it ends. A request that
    is repeated afterwards acts again. Keys in a cache have no list, and end with their lifetime. BackendUnavailable if
    a database does not answer.
    """
    return sum(table_in(alias).forget(user_label(user.pk)) for alias in databases() if has_table(alias))
