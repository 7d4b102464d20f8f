"""System checks of idempotency keys; part of ``manage.py check --tag distlock``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from django.core.cache import InvalidCacheBackendError, caches
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, router
from django.urls import get_resolver
from django.utils.module_loading import import_string

from . import conf
from .decorator import atomic_aliases
from .middleware import IdempotencyMiddleware

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    used = _position() is not None
    found = _check_order()
    if used or atomic_aliases:
        found += [*_check_storage(config), *_check_encryption(config)]
        found += _check_aliases(config)
    return found


def _position() -> int | None:
    for position, path in enumerate(conf.middleware()):
        try:
            factory = import_string(path)
        except ImportError:  # Django reports it
            continue
        if isinstance(factory, type) and issubclass(factory, IdempotencyMiddleware):
            return position
    return None


def _check_order() -> list[CheckMessage]:
    position = _position()
    if position is None:
        return []
    late = [path for path in conf.middleware()[position + 1 :] if path.rpartition(".")[2] in ABOVE]
    return [
        Error(
            f"MIDDLEWARE has {path} below the IdempotencyMiddleware: stored answers would be given before it runs.",
            hint="Move the IdempotencyMiddleware down.",
            id="distlock.E032",
        )
        for path in late
    ]


def _check_storage(config: conf.Config) -> list[CheckMessage]:
    if config.storage == "database":
        return []
    try:
        kind = type(caches[config.cache]).__name__
    except InvalidCacheBackendError as error:
        return [Error(f"DISTLOCK_IDEMPOTENCY: {error}", id="distlock.E031")]
    found: list[CheckMessage] = []
    if config.max_keys is not None:
        found.append(
            Warning(
                "MAX_KEYS has no effect on idempotency keys in a cache, which cannot count the keys of a principal.",
                hint='Use STORAGE = "database", or remove MAX_KEYS.',
                id="distlock.W064",
            )
        )
    if kind not in NOT_SHARED:
        return found
    return [
        *found,
        Warning(
            f"The idempotency keys are in the cache {config.cache!r}, a {kind}, which other processes do not see.",
            hint="Use the database, or a cache that all processes share.",
            id="distlock.W031",
        ),
    ]


def _check_encryption(config: conf.Config) -> list[CheckMessage]:
    if not config.encrypt or find_spec("cryptography") is not None:
        return []
    return [
        Error(
            'DISTLOCK_IDEMPOTENCY["ENCRYPT"] is set, and the package cryptography is not installed: each request with '
            "a key would fail.",
            hint="pip install 'django-distlock[encryption]'",
            id="distlock.E064",
        )
    ]


def _check_aliases(config: conf.Config) -> list[CheckMessage]:
    """Every database that holds keys exists and gets the table."""
    try:
        _ = get_resolver().url_patterns  # imports the views, whose decorators register their aliases
    except Exception:
        return []
    atomic = {config.database if alias is True else str(alias) for alias in atomic_aliases}
    aliases = atomic | ({config.database} if config.storage == "database" else set())
    found: list[CheckMessage] = []
    for alias in sorted(aliases):
        if alias not in connections.settings:
            found.append(Error(f"Idempotency keys: {alias!r} is not in DATABASES.", id="distlock.E033"))
        elif not router.allow_migrate(alias, "django_distlock", model_name="idempotencyrecord"):
            found.append(
                Error(
                    f"Idempotency keys: a router keeps their table out of the database {alias!r}.",
                    hint="@idempotent(atomic=...) needs the table in the database that the view writes to.",
                    id="distlock.E034",
                )
            )
    others = [alias for alias in conf.atomic_requests() if alias not in atomic]
    if atomic and others:
        found.append(
            Warning(
                f"@idempotent(atomic=True) covers {', '.join(sorted(atomic))}, and ATOMIC_REQUESTS is on for "
                f"{', '.join(others)} too: what a view writes there is not part of the same transaction.",
                hint="Name the database that the view writes to: @idempotent(atomic='alias').",
                id="distlock.W032",
            )
        )
    return found
