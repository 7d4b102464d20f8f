"""System checks of idempotency keys; part of ``manage.py check --tag distlock``."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.core.cache import InvalidCacheBackendError, caches
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.urls import get_resolver
from django.utils.module_loading import import_string

from . import conf
from .decorator import atomic_aliases
from .middleware import IdempotencyMiddleware
from .storage import is_allowed, is_known
from .storage.encoding import require_cryptography

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.apps import AppConfig

# Middleware that must run before a stored answer is given, by the last part of the dotted path.
ABOVE = (
    "SessionMiddleware",
    "LocaleMiddleware",
    "CsrfViewMiddleware",
    "AuthenticationMiddleware",
    "LoginRequiredMiddleware",
    "MessageMiddleware",
)
# Caches that other processes do not share, or that store nothing.
NOT_SHARED = ("LocMemCache", "DummyCache")


def check_idempotency(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """``DISTLOCK_IDEMPOTENCY``, the order of MIDDLEWARE, and the databases of exactly-once views."""
    try:
        config = conf.config()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="distlock.E031")]
    below = _below()
    if below is None and not atomic_aliases:
        return []
    return [*_check_order(below or []), *_check_cache(config), *_check_encryption(), *_check_aliases(config)]


def _below() -> list[str] | None:
    """The middleware below ours, or below a class derived from it; None if it is not in use."""
    paths = list(conf.settings.MIDDLEWARE)
    for number, path in enumerate(paths, start=1):
        with suppress(ImportError):  # Django reports it
            factory = import_string(path)
            if isinstance(factory, type) and issubclass(factory, IdempotencyMiddleware):
                return paths[number:]
    return None


def _check_order(below: list[str]) -> list[CheckMessage]:
    return [
        Error(
            f"MIDDLEWARE has {path} below the IdempotencyMiddleware: stored answers would be given before it runs.",
            hint="Move the IdempotencyMiddleware down.",
            id="distlock.E032",
        )
        for path in below
        if path.rpartition(".")[2] in ABOVE
    ]


def _check_cache(config: conf.Options) -> Iterator[CheckMessage]:
    if config.storage != "cache":
        return
    try:
        kind = type(caches[config.cache]).__name__
    except InvalidCacheBackendError as error:
        yield Error(f"DISTLOCK_IDEMPOTENCY: {error}", id="distlock.E031")
        return
    if config.max_keys is not None:
        yield Warning(
            "MAX_KEYS has no effect on idempotency keys in a cache, which cannot count the keys of a principal.",
            hint='Use STORAGE = "database", or remove MAX_KEYS.',
            id="distlock.W064",
        )
    if kind in NOT_SHARED:
        yield Warning(
            f"The idempotency keys are in the cache {config.cache!r}, a {kind}, which other processes do not see.",
            hint="Use the database, or a cache that all processes share.",
            id="distlock.W031",
        )


def _check_encryption() -> list[CheckMessage]:
    try:
        require_cryptography()
    except ImproperlyConfigured as error:
        return [Error(f"{error} Each request with a key would fail.", id="distlock.E064")]
    return []


def _check_aliases(config: conf.Options) -> Iterator[CheckMessage]:
    """Every database that holds keys exists and gets the table."""
    try:
        _ = get_resolver().url_patterns  # imports the views, whose decorators register their aliases
    except Exception:
        return
    atomic = {config.database if alias is True else str(alias) for alias in atomic_aliases}
    for alias in sorted(atomic | ({config.database} if config.storage == "database" else set())):
        if alias not in connections.settings:
            yield Error(f"Idempotency keys: {alias!r} is not in DATABASES.", id="distlock.E033")
        elif not is_allowed(alias):
            yield Error(
                f"Idempotency keys: a router keeps their table out of the database {alias!r}.",
                hint="@idempotent(atomic=...) needs the table in the database that the view writes to.",
                id="distlock.E034",
            )
        elif not is_known(alias):
            yield Error(
                f"Idempotency keys need PostgreSQL, MySQL, MariaDB or SQLite; {alias!r} is another database.",
                hint='Keep them in another database, or set DISTLOCK_IDEMPOTENCY["STORAGE"] = "cache".',
                id="distlock.E035",
            )
    others = [
        alias for alias, entry in connections.settings.items() if entry["ATOMIC_REQUESTS"] and alias not in atomic
    ]
    if atomic and others:
        yield Warning(
            f"@idempotent(atomic=True) covers {', '.join(sorted(atomic))}, and ATOMIC_REQUESTS is on for "
            f"{', '.join(others)} too: what a view writes there is not part of the same transaction.",
            hint="Name the database that the view writes to: @idempotent(atomic='alias').",
            id="distlock.W032",
        )
