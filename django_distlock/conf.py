"""Reads the settings of locks; other modules ask here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import import_string

from .validation import count, seconds

KEYS = ("BACKEND", "NAMESPACE", "TIMEOUT", "TTL", "MAX_HOLD", "MAX_HELD", "WARN_HOLD_SECONDS", "OPTIONS")
MIN_SITE_KEY_LENGTH = 32
MAX_NAMESPACE_LENGTH = 100

DEFAULT_BACKENDS = {
    "postgresql": "django_distlock.backends.postgres.AdvisoryBackend",
    "mysql": "django_distlock.backends.mysql.NamedLockBackend",
}
FALLBACK_BACKEND = "django_distlock.backends.leasetable.LeaseTableBackend"


@dataclass(frozen=True, slots=True, kw_only=True)
class AliasConfig:
    """One alias of ``DISTLOCK``; times in seconds."""

    alias: str
    backend: str
    # a function is asked at each acquire
    namespace: str | Callable[[], str] = ""
    timeout: float | None = 10.0
    ttl: float = 30.0
    max_hold: float | None = None
    max_held: int = 1000
    warn_hold_seconds: float | None = None
    # no repr: they may contain passwords
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


def configured() -> Mapping[str, Mapping[str, Any]]:
    """The setting ``DISTLOCK``, with an empty "default" if it has none."""
    given = getattr(settings, "DISTLOCK", None) or {}
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured("DISTLOCK must be a dict: alias -> settings.")
    return given if "default" in given else {"default": {}, **given}


def default_backend(database: str) -> str:
    """The backend that fits the engine of a database alias."""
    if database not in connections.settings:
        raise ImproperlyConfigured(f"DISTLOCK names the database {database!r}, which is not in DATABASES.")
    return DEFAULT_BACKENDS.get(connections[database].vendor, FALLBACK_BACKEND)


def read_alias(alias: str) -> AliasConfig:
    """Parse one alias. ImproperlyConfigured if it does not exist or a value is out of range."""
    aliases = configured()
    if alias not in aliases:
        known = ", ".join(repr(name) for name in aliases)
        raise ImproperlyConfigured(f"There is no lock backend {alias!r} in DISTLOCK. Known: {known}.")
    entry = aliases[alias]
    if not isinstance(entry, Mapping):
        raise ImproperlyConfigured(f"DISTLOCK[{alias!r}] must be a dict.")
    options, backend = entry.get("OPTIONS") or {}, entry.get("BACKEND")
    if not isinstance(options, Mapping):
        raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]['OPTIONS'] must be a dict.")
    options = dict(options)
    for option in ("database", "session_database"):
        if not isinstance(options.get(option, ""), str):
            raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]: OPTIONS[{option!r}] must be an alias in DATABASES.")
    if not isinstance(backend, str | None):
        raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]['BACKEND'] must be the dotted path of a class, as a str.")
    if backend is None:
        database = options.setdefault("database", DEFAULT_DB_ALIAS)
        backend = default_backend(database)
    try:
        return AliasConfig(
            alias=alias,
            backend=backend,
            namespace=_namespace(entry.get("NAMESPACE", "")),
            timeout=seconds("TIMEOUT", entry.get("TIMEOUT", 10.0), none=True),
            ttl=seconds("TTL", entry.get("TTL", 30.0), positive=True) or 30.0,
            max_hold=seconds("MAX_HOLD", entry.get("MAX_HOLD"), none=True, positive=True),
            max_held=count("MAX_HELD", entry.get("MAX_HELD", 1000)),
            warn_hold_seconds=seconds("WARN_HOLD_SECONDS", entry.get("WARN_HOLD_SECONDS"), none=True, positive=True),
            options=options,
        )
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]: {error}") from error


def _namespace(value: object) -> str | Callable[[], str]:
    """A text as it is, or a function given itself or by its dotted path. A text has no dot, so that the two differ."""
    if isinstance(value, str) and "." not in value:
        return checked_namespace(value)
    found = function("NAMESPACE", value, that="without arguments that returns a str")
    if found is None:
        raise TypeError('NAMESPACE must be a str, or a callable that returns one; "" is none, not None.')
    return found


def checked_namespace(value: object) -> str:
    """Return ``value`` if it is a namespace: printable and at most 100 characters; "" is none."""
    if not isinstance(value, str):
        raise TypeError(f"NAMESPACE must be a str, not {type(value).__name__}.")
    if not value.isprintable() or len(value) > MAX_NAMESPACE_LENGTH:
        raise ValueError(
            f"NAMESPACE must have at most {MAX_NAMESPACE_LENGTH} characters, all printable, not {value[:120]!r}."
        )
    return value


def history_days() -> float | None:
    """The setting ``DISTLOCK_HISTORY_DAYS``: the days for which events are kept. None: they are not recorded."""
    days = getattr(settings, "DISTLOCK_HISTORY_DAYS", None)
    try:
        return seconds("DISTLOCK_HISTORY_DAYS", days, none=True, positive=True)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(str(error)) from error


def site_key_setting() -> str | None:
    """The setting ``DISTLOCK_SITE_KEY``, or None."""
    key = getattr(settings, "DISTLOCK_SITE_KEY", None)
    if key is None or key == "":
        return None
    if not isinstance(key, str):
        raise ImproperlyConfigured(f"DISTLOCK_SITE_KEY must be a str, not {type(key).__name__}.")
    return key


def function(argument: str, value: object, *, that: str = "") -> Callable[..., Any] | None:
    """Return a callable, given itself or by its dotted path; None for None. ``that`` tells what it takes."""
    try:
        found = import_string(value) if isinstance(value, str) else value
    except ImportError as error:
        raise ValueError(f"{argument}: {error}") from error
    if found is None or callable(found):
        return found
    raise TypeError(f"{argument} must be a callable{that and f' {that}'}, or the dotted path of one.")
