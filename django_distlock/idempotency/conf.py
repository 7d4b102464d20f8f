"""The setting ``DISTLOCK_IDEMPOTENCY``, and what an option of ``@idempotent`` may be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch

from django_distlock.conf import function
from django_distlock.validation import choice, count, flag, seconds

OnCrash = Literal["retry", "hold"] | Callable[..., Any]
OnStoreError = Literal["closed", "open"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What holds for a request: the setting of the site, with the options of its view in place of some values.

    Times in seconds, sizes in bytes.
    """

    storage: str = "database"
    database: str = "default"
    cache: str = "default"
    purge_every: float | None = 300.0
    form_wait: float = 2.0
    max_body: int = 256 * 1024
    max_keys: int | None = None
    credentials: bool = True
    max_upload: int = 100 * 1024 * 1024
    encrypt: bool = False
    # a view may have its own
    ttl: float = 86400.0
    claim_ttl: float = 30.0
    wait: float = 0.0
    on_crash: OnCrash = "hold"
    on_store_error: OnStoreError = "closed"
    replay_to_credentials: bool = False
    scope: Callable[[Any], str] | None = None
    # of a view alone
    required: bool = False
    atomic: bool | str = False
    fingerprint_exclude: Collection[str] = ()
    key: Callable[[Any], str | None] | None = None
    anonymous: bool = False
    fingerprint: Callable[[Any], str | bytes] | None = None


def _must_be(wanted: str, is_right: Callable[[Any], bool], error: type[Exception] = TypeError) -> Any:
    def check(name: str, value: Any) -> Any:
        if not is_right(value):
            raise error(f"{name} must be {wanted}, not {value!r}.")
        if iscoroutinefunction(value):
            raise TypeError(f"{name} must be a plain function, of async views too: it is called in a thread.")
        return value

    return check


_text = _must_be("a str", lambda value: isinstance(value, str))
_of_request = _must_be("a callable that takes the request", callable)
CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "storage": partial(choice, known=("database", "cache")),
    "database": _text,
    "cache": _text,
    "purge_every": partial(seconds, none=True, positive=True),
    "form_wait": seconds,
    "max_body": count,
    "max_keys": lambda name, value: None if value is None else count(name, value),
    "credentials": flag,
    "max_upload": count,
    "encrypt": flag,
    "ttl": partial(seconds, positive=True),
    "claim_ttl": partial(seconds, positive=True),
    "wait": seconds,
    "on_crash": _must_be(
        '"retry", "hold" or a callable', lambda value: callable(value) or value in ("retry", "hold"), ValueError
    ),
    "on_store_error": partial(choice, known=("closed", "open")),
    "replay_to_credentials": flag,
    "scope": lambda name, value: None if value is None else _of_request(name, function(name, value)),
    "required": flag,
    "atomic": _must_be("a bool or an alias in DATABASES", lambda value: isinstance(value, (bool, str)) and value != ""),
    "fingerprint_exclude": _must_be(
        "a list of names of fields",
        lambda value: not isinstance(value, str) and all(isinstance(each, str) for each in value),
    ),
    "key": _of_request,
    "anonymous": flag,
    "fingerprint": _of_request,
}
_NAMES = tuple(CHECKS)
OF_SITE = _NAMES[: _NAMES.index("required")]
OF_VIEW = _NAMES[_NAMES.index("ttl") :]


@cache
def config() -> Options:
    """The setting. ImproperlyConfigured for an unknown key or a wrong value."""
    given = getattr(settings, "DISTLOCK_IDEMPOTENCY", None) or {}
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured("DISTLOCK_IDEMPOTENCY must be a dict.")
    known = [name.upper() for name in OF_SITE]
    unknown = [key for key in given if key not in known]
    if unknown:
        raise ImproperlyConfigured(
            f"DISTLOCK_IDEMPOTENCY has the unknown key {unknown[0]!r}. Known: {', '.join(known)}."
        )
    try:
        return Options(**{key.lower(): CHECKS[key.lower()](key, value) for key, value in given.items()})
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"DISTLOCK_IDEMPOTENCY: {error}") from error


def options_of_view(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``@idempotent`` that differ from the setting. TypeError or ValueError for a wrong one."""
    unknown = [name for name in given if name not in OF_VIEW]
    if unknown:
        raise TypeError(f"@idempotent has no option {unknown[0]!r}. Options: {', '.join(OF_VIEW)}.")
    found = {name: CHECKS[name](name, value) for name, value in given.items() if value is not None}
    if "wait" in found:
        found["form_wait"] = found["wait"]
    return found


def middleware() -> list[str]:
    """The setting MIDDLEWARE."""
    return list(settings.MIDDLEWARE)


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


def longest_body() -> int | None:
    """The longest body that Django reads into memory."""
    return settings.DATA_UPLOAD_MAX_MEMORY_SIZE


def upload_files() -> dict[str, Any]:
    """The arguments of the SpooledTemporaryFile that holds a body, as for Django's uploaded files."""
    return {"max_size": settings.FILE_UPLOAD_MAX_MEMORY_SIZE, "dir": settings.FILE_UPLOAD_TEMP_DIR}


def _clear(*, setting: str, **kwargs: Any) -> None:
    if setting == "DISTLOCK_IDEMPOTENCY":
        config.cache_clear()


setting_changed.connect(_clear)
