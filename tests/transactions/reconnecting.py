"""Other settings for a database connection of the running thread, which connects anew."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def options(alias: str, **changes: Any) -> Iterator[None]:
    """Other OPTIONS for the connection of this thread."""
    with _changed(alias, OPTIONS={**connections[alias].settings_dict["OPTIONS"], **changes}):
        yield


@contextlib.contextmanager
def address(alias: str, host: str, port: int) -> Iterator[None]:
    """Another way to the same server, for the connection of this thread."""
    with _changed(alias, HOST=host, PORT=str(port)):
        yield


@contextlib.contextmanager
def _changed(alias: str, **changes: Any) -> Iterator[None]:
    connection = connections[alias]
    connection.close()
    before = {key: connection.settings_dict[key] for key in changes}
    connection.settings_dict.update(changes)
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict.update(before)
