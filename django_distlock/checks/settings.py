"""System checks of the settings, without a connection: ``manage.py check --tag distlock``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from django_distlock.backends.base import Backend
from django_distlock.conf import KEYS, MIN_SITE_KEY_LENGTH, AliasConfig, history_days, read_alias, site_key_setting

if TYPE_CHECKING:
    from django.apps import AppConfig

# The driver of a backend -> the extra that installs it.
EXTRAS = {"psycopg": "postgres", "MySQLdb": "mysql", "redis": "redis", "kazoo": "zookeeper"}
# A lease is renewed every third of its TTL, and a renewal may take a second.
LEAST_TTL = 3.0


def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check DISTLOCK, DISTLOCK_SITE_KEY and DISTLOCK_HISTORY_DAYS."""
    found = [*_check_site_key(), *_check_history()]
    given = getattr(settings, "DISTLOCK", {})
    if not isinstance(given, Mapping):
        return [*found, Error("DISTLOCK must be a dict: alias -> settings.", id="distlock.E001")]
    for alias in given if "default" in given else ["default", *given]:
        found += _check_alias(alias, given.get(alias, {}))
    return found


def _check_alias(alias: Any, entry: Any) -> list[CheckMessage]:
    where = f"DISTLOCK[{alias!r}]"
    if not isinstance(alias, str):
        return [Error(f"{where}: an alias must be a str.", id="distlock.E001")]
    if not isinstance(entry, Mapping):
        return [Error(f"{where} must be a dict.", id="distlock.E001")]
    found: list[CheckMessage] = [
        Error(
            f"{where} has the unknown key {key!r}.",
            hint=f"Known keys: {', '.join(KEYS)}. Options of the backend go into OPTIONS.",
            id="distlock.E002",
        )
        for key in entry
        if key not in KEYS
    ]
    try:
        config = read_alias(alias)
        factory = import_string(config.backend)
    except ImproperlyConfigured as error:
        return [*found, _missing_driver(where, error.__cause__) or Error(str(error), id="distlock.E003")]
    except ImportError as error:
        missing = Error(f"{where}: cannot import the backend {config.backend!r}: {error}", id="distlock.E003")
        return [*found, _missing_driver(where, error) or missing]
    if not (isinstance(factory, type) and issubclass(factory, Backend)):
        return [*found, Error(f"{where}: {config.backend!r} is not a subclass of Backend.", id="distlock.E003")]
    wrong = [*_check_options(where, factory, config.options), *_check_ttl(where, factory, entry)]
    if factory.supports_ttl and config.ttl < LEAST_TTL:
        found.append(
            Warning(
                f"{where}: with a TTL of {config.ttl:g} s a process that stalls for a moment loses its locks.",
                hint=f"A renewal is due every third of the TTL and may take a second: set {LEAST_TTL:g} s or more.",
                id="distlock.W008",
            )
        )
    return [*found, *(wrong or _check_backend(factory, config))]


def _missing_driver(where: str, error: BaseException | None) -> CheckMessage | None:
    """The message with the extra to install, if a backend cannot be imported because its driver is missing."""
    driver = (getattr(error, "name", None) or "").partition(".")[0]
    if driver not in EXTRAS:
        return None
    return Error(
        f"{where}: the driver {driver!r} is not installed.",
        hint=f"pip install 'django-distlock[{EXTRAS[driver]}]'",
        id="distlock.E008",
    )


def _check_backend(factory: type[Backend], config: AliasConfig) -> list[CheckMessage]:
    """Run the check of the backend."""
    try:
        return factory(config.alias, config.options).check()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="distlock.E003")]


def _check_options(where: str, factory: type[Backend], options: Mapping[str, Any]) -> list[CheckMessage]:
    known = ", ".join(sorted(factory.option_names)) or "none"
    found: list[CheckMessage] = [
        Error(
            f"{where}: {factory.__name__} has no option {option!r}.",
            hint=f"Its options: {known}.",
            id="distlock.E004",
        )
        for option in options
        if option not in factory.option_names
    ]
    for option in ("database", "session_database"):
        alias = options.get(option)
        if alias is not None and alias not in connections.settings:
            found.append(
                Error(f"{where}: OPTIONS[{option!r}] is {alias!r}, which is not in DATABASES.", id="distlock.E005")
            )
    return found


def _check_ttl(where: str, factory: type[Backend], entry: Mapping[str, Any]) -> list[CheckMessage]:
    if factory.supports_ttl:
        return []
    return [
        Error(
            f"{where}: {factory.__name__} has no {key}: its locks live as long as their session.",
            hint=f"Remove {key}.",
            id="distlock.E006",
        )
        for key in ("TTL", "MAX_HOLD")
        if key in entry
    ]


def _check_site_key() -> list[CheckMessage]:
    try:
        key = site_key_setting()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="distlock.E007")]
    if key is not None and len(key) < MIN_SITE_KEY_LENGTH:
        return [
            Warning(
                f"DISTLOCK_SITE_KEY has fewer than {MIN_SITE_KEY_LENGTH} characters.",
                hint="Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
                id="distlock.W001",
            )
        ]
    return []


def _check_history() -> list[CheckMessage]:
    try:
        history_days()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="A number of days above zero, or None.", id="distlock.E010")]
    return []


def check_isolation(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report isolation levels under which reads can be older than the lock (R13)."""
    found: list[CheckMessage] = []
    for alias, parameters in connections.settings.items():
        level = (parameters.get("OPTIONS") or {}).get("isolation_level")
        name = str(getattr(level, "name", level)).replace("_", " ").upper()
        if name in ("REPEATABLE READ", "SERIALIZABLE"):
            found.append(
                Warning(
                    f"The database {alias!r} runs its transactions at {name}: reads under a lock that was taken "
                    "inside a transaction may be older than the lock.",
                    hint="Take locks before atomic(), or use READ COMMITTED.",
                    id="distlock.W002",
                )
            )
    return found
