"""The setting ``DISTLOCK_BROWSER``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import DEFAULT_DB_ALIAS

from django_distlock.conf import function
from django_distlock.http.visitors import default_label
from django_distlock.validation import count, seconds

LEAST_BODY = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BrowserConfig:
    """The keys of ``DISTLOCK_BROWSER`` in lower case, with their defaults; times in seconds."""

    ttl: float = 30.0
    max_hold: float | None = None
    # How long a signed grant can be used.
    grant_ttl: float = 43200.0
    database: str = DEFAULT_DB_ALIAS
    label: Callable[[Any], str] | None = None
    # May the sender of this request have the lock of this name? Asked at each acquire and each renewal.
    permission: Callable[..., bool] | None = None
    # Leases and places in queues of one principal at the same time; None for any number.
    max_held: int | None = 50
    max_waiting: int | None = 50
    # Bytes of the body of a request.
    max_body: int = 65536

    def label_of(self, user: Any) -> str:
        """How ``user`` is shown to others."""
        return str(self.label(user) if self.label is not None else default_label(user))


KEYS = tuple(field.name.upper() for field in fields(BrowserConfig))


def is_set() -> bool:
    """Does the project have the setting?"""
    return getattr(settings, "DISTLOCK_BROWSER", None) is not None


@cache
def config() -> BrowserConfig:
    """The setting. ImproperlyConfigured for an unknown key or a wrong value."""
    given = getattr(settings, "DISTLOCK_BROWSER", None) or {}
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured("DISTLOCK_BROWSER must be a dict.")
    unknown = [str(key) for key in given if key not in KEYS]
    if unknown:
        raise ImproperlyConfigured(f"DISTLOCK_BROWSER has the unknown key {unknown[0]!r}. Known: {', '.join(KEYS)}.")
    try:
        return BrowserConfig(**{key.lower(): _checked(key, value) for key, value in given.items()})
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"DISTLOCK_BROWSER: {error}") from error


def _checked(key: str, value: Any) -> Any:
    if key in ("TTL", "GRANT_TTL"):
        return seconds(key, value, positive=True)
    if key == "MAX_HOLD":
        return seconds(key, value, none=True, positive=True)
    if key in ("MAX_HELD", "MAX_WAITING"):
        return None if value is None else count(key, value)
    if key == "MAX_BODY":
        if count(key, value) < LEAST_BODY:
            raise ValueError(f"MAX_BODY must be at least {LEAST_BODY}: a request has hundreds of bytes.")
        return value
    if key == "DATABASE":
        if not isinstance(value, str):
            raise TypeError(f"DATABASE must be an alias of DATABASES, not {type(value).__name__}.")
        return value
    found = function(key, value)
    if iscoroutinefunction(found):  # a coroutine that nothing awaits is true: it would permit everything
        raise TypeError(f"{key} must be a plain function, not an async one.")
    return found


def _clear(*, setting: str, **kwargs: Any) -> None:
    if setting == "DISTLOCK_BROWSER":
        config.cache_clear()


setting_changed.connect(_clear)
