"""System checks of the settings, without a connection: ``manage.py check --tag distlock``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from django_distlock.backends.base import Backend
from django_distlock.conf import KEYS, MIN_SITE_KEY_LENGTH, AliasConfig, history_days, read_alias, site_key_setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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


def _check_alias(alias: Any, entry: Any) -> Iterator[CheckMessage]:
    where = f"DISTLOCK[{alias!r}]"
    if not isinstance(alias, str):
        yield Error(f"{where}: an alias must be a str.", id="distlock.E001")
        return
    if not isinstance(entry, Mapping):
        yield Error(f"{where} must be a dict.", id="distlock.E001")
        return
    hint = f"Known keys: {', '.join(KEYS)}. Options of the backend go into OPTIONS."
    for key in entry:
        if key not in KEYS:
            yield Error(f"{where} has the unknown key {key!r}.", hint=hint, id="distlock.E002")
    factory: Any = None
    try:
        config = read_alias(alias)
        factory = import_string(config.backend)
    except ImproperlyConfigured as error:
        yield _missing_driver(where, error.__cause__) or Error(str(error), id="distlock.E003")
    except ImportError as error:
        missing = f"{where}: cannot import the backend {config.backend!r}: {error}"
        yield _missing_driver(where, error) or Error(missing, id="distlock.E003")
    else:
        if isinstance(factory, type) and issubclass(factory, Backend):
            yield from _check_backend(where, factory, config, entry)
        else:
            yield Error(f"{where}: {config.backend!r} is not a subclass of Backend.", id="distlock.E003")


def _missing_driver(where: str, error: BaseException | None) -> CheckMessage | None:
    """The message with the extra to install, if a backend cannot be imported because its driver is missing."""
    driver = (getattr(error, "name", None) or "").partition(".")[0]
    if driver not in EXTRAS:
        return None
    hint = f"pip install 'django-distlock[{EXTRAS[driver]}]'"
    return Error(f"{where}: the driver {driver!r} is not installed.", hint=hint, id="distlock.E008")


def _check_backend(
    where: str, factory: type[Backend], config: AliasConfig, entry: Mapping[str, Any]
) -> Iterator[CheckMessage]:
    wrong = [*_check_options(where, factory, config.options), *_check_ttl(where, factory, entry)]
    yield from wrong
    if factory.supports_ttl and config.ttl < LEAST_TTL:
        yield Warning(
            f"{where}: with a TTL of {config.ttl:g} s a process that stalls for a moment loses its locks.",
            hint=f"A renewal is due every third of the TTL and may take a second: set {LEAST_TTL:g} s or more.",
            id="distlock.W008",
        )
    if not wrong:  # what the backend itself has to say
        try:
            yield from factory(config.alias, config.options).check()
        except ImproperlyConfigured as error:
            yield Error(str(error), id="distlock.E003")


def _check_options(where: str, factory: type[Backend], options: Mapping[str, Any]) -> Iterator[CheckMessage]:
    hint = f"Its options: {', '.join(sorted(factory.option_names)) or 'none'}."
    for option, value in options.items():
        if option not in factory.option_names:
            yield Error(f"{where}: {factory.__name__} has no option {option!r}.", hint=hint, id="distlock.E004")
        if option in ("database", "session_database") and value is not None and value not in connections.settings:
            yield Error(f"{where}: OPTIONS[{option!r}] is {value!r}, which is not in DATABASES.", id="distlock.E005")


def _check_ttl(where: str, factory: type[Backend], entry: Mapping[str, Any]) -> Iterator[CheckMessage]:
    for key in ("TTL", "MAX_HOLD"):
        if key in entry and not factory.supports_ttl:
            text = f"{where}: {factory.__name__} has no {key}: its locks live as long as their session."
            yield Error(text, hint=f"Remove {key}.", id="distlock.E006")


def _check_site_key() -> Iterator[CheckMessage]:
    try:
        key = site_key_setting()
    except ImproperlyConfigured as error:
        yield Error(str(error), id="distlock.E007")
        return
    if key is not None and len(key) < MIN_SITE_KEY_LENGTH:
        text = f"DISTLOCK_SITE_KEY has fewer than {MIN_SITE_KEY_LENGTH} characters."
        hint = "Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        yield Warning(text, hint=hint, id="distlock.W001")


def _check_history() -> Iterator[CheckMessage]:
    try:
        history_days()
    except ImproperlyConfigured as error:
        yield Error(str(error), hint="A number of days above zero, or None.", id="distlock.E010")


def check_isolation(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Report isolation levels under which reads can be older than the lock (R13)."""
    levels = {
        alias: _level((parameters.get("OPTIONS") or {}).get("isolation_level"))
        for alias, parameters in connections.settings.items()
    }
    return [
        Warning(
            f"The database {alias!r} runs its transactions at {level}: reads under a lock that was taken inside a "
            "transaction may be older than the lock.",
            hint="Take locks before atomic(), or use READ COMMITTED.",
            id="distlock.W002",
        )
        for alias, level in levels.items()
        if level in ("REPEATABLE READ", "SERIALIZABLE")
    ]


def _level(given: Any) -> str:
    """The level of a driver's enum or of a text, in capitals."""
    return str(getattr(given, "name", given)).replace("_", " ").upper()
