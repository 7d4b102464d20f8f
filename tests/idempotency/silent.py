"""A cache that swallows its errors."""

from __future__ import annotations

from typing import Any

from django.core.cache.backends.dummy import DummyCache


class SilentCache(DummyCache):
    """As django-redis with IGNORE_EXCEPTIONS and a server that is down."""

    def __init__(self, *args: Any) -> None:
        super().__init__("", {})

    def add(self, *args: Any, **kwargs: Any) -> bool:
        return False
