"""The setting ``DISTLOCK_IDEMPOTENCY``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch

from django_distlock.conf import function
from django_distlock.validation import choice, count, flag, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The keys of ``DISTLOCK_IDEMPOTENCY`` in lower case, with their defaults; times in seconds, sizes in bytes."""

    storage: str = "database"
    database: str = "default"
    cache: str = "default"
    ttl: float = 86400.0
    purge_every: float | None = 300.0
    claim_ttl: float = 30.0
    wait: float = 0.0
    form_wait: float = 2.0
    max_body: int = 256 * 1024
    max_keys: int | None = None
    on_crash: str = "hold"
    on_store_error: str = "closed"
    credentials: bool = True
    replay_to_credentials: bool = False
    scope: Callable[[Any], str] | None = None
    max_upload: int = 100 * 1024 * 1024
    encrypt: bool = False


KEYS = tuple(field.name.upper() for field in fields(Config))
_CHOICES = {"storage": ("database", "cache"), "on_crash": ("retry", "hold"), "on_store_error": ("closed", "open")}


@cache
def config() -> Config:
    """The setting. ImproperlyConfigured for an unknown key or a wrong value."""
    given = getattr(settings, "DISTLOCK_IDEMPOTENCY", None) or {}
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured("DISTLOCK_IDEMPOTENCY must be a dict.")
    unknown = [key for key in given if key not in KEYS]
    if unknown:
        raise ImproperlyConfigured(
            f"DISTLOCK_IDEMPOTENCY has the unknown key {unknown[0]!r}. Known: {', '.join(KEYS)}."
        )
    values = {key.lower(): value for key, value in given.items()}
    try:
        return Config(**{name: _checked(name, value) for name, value in values.items()})
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"DISTLOCK_IDEMPOTENCY: {error}") from error


def _checked(name: str, value: Any) -> Any:
    key = name.upper()
    if name in ("ttl", "claim_ttl"):
        return seconds(key, value, positive=True)
    if name == "purge_every":
        return seconds(key, value, none=True, positive=True)
    if name in ("wait", "form_wait"):
        return seconds(key, value)
    if name == "max_keys" and value is None:
        return None
    if name in ("max_body", "max_keys", "max_upload"):
        return count(key, value)
    if name in ("credentials", "encrypt", "replay_to_credentials"):
        return flag(key, value)
    if name == "scope":
        return function(key, value, that="that takes the request")
    if not isinstance(value, str):
        raise TypeError(f"{key} must be a str, not {type(value).__name__}.")
    return choice(key, value, _CHOICES[name]) if name in _CHOICES else value


def middleware() -> list[str]:
    """The setting MIDDLEWARE."""
    return list(settings.MIDDLEWARE)


def atomic_requests() -> list[str]:
    """The aliases with ATOMIC_REQUESTS."""
    return [alias for alias, entry in settings.DATABASES.items() if entry.get("ATOMIC_REQUESTS")]


def login_url() -> str | None:
    """The address to which ``login_required`` redirects, if there is one."""
    if not settings.LOGIN_URL:
        return None
    try:
        return resolve_url(settings.LOGIN_URL)
    except NoReverseMatch:
        return None


def secret_keys() -> list[str | bytes]:
    """SECRET_KEY, which signs and encrypts, and the fallbacks, which only verify and decrypt."""
    return [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]


def csrf_cookie() -> str | None:
    """The name of the cookie with the CSRF secret; None if the secret is in the session."""
    return None if settings.CSRF_USE_SESSIONS else settings.CSRF_COOKIE_NAME


@cache
def longest_body() -> int | None:
    """The longest body that Django reads into memory."""
    return settings.DATA_UPLOAD_MAX_MEMORY_SIZE


def upload_files() -> dict[str, Any]:
    """The arguments of the SpooledTemporaryFile that holds a body, as for Django's uploaded files."""
    return {"max_size": settings.FILE_UPLOAD_MAX_MEMORY_SIZE, "dir": settings.FILE_UPLOAD_TEMP_DIR}


def charset() -> str:
    return settings.DEFAULT_CHARSET


def _clear(*, setting: str, **kwargs: Any) -> None:
    if setting == "DISTLOCK_IDEMPOTENCY":
        config.cache_clear()
    elif setting == "DATA_UPLOAD_MAX_MEMORY_SIZE":
        longest_body.cache_clear()


setting_changed.connect(_clear)
