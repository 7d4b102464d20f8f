"""The backend of each alias, created once per process and shared by its threads.

Django's ``BaseConnectionHandler`` keeps one object per thread; that would be one set of lock sessions per thread.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_distlock.backends.base import Backend
from django_distlock.concurrency.fork import Order, at_fork
from django_distlock.conf import AliasConfig, checked_namespace, configured, read_alias
from django_distlock.keys import LockKey, derive_key

from .keepalive import keepalive
from .lock_table import lock_table
from .name_log import name_log
from .site_key import site_key

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("django_distlock.backends")

CACHED_KEYS = 4096


@dataclass(slots=True, eq=False, repr=False)
class Entry:
    """One alias: its configuration, its backend, and the keys of the names used lately."""

    config: AliasConfig
    backend: Backend
    # by the parts of which they are made; an acquire looks here first, and finds none whose namespace must be asked for
    keys: dict[tuple[Any, ...], LockKey] = field(default_factory=dict)

    @property
    def ready(self) -> bool:
        """Can keys be made without asking for the site key first?"""
        return not self.backend.needs_site_key or site_key.pinned is not None

    def key(self, *parts: str) -> LockKey:
        """The key of a name; further parts tell the slots of a semaphore apart."""
        namespace = self.namespace()
        kept = (parts, namespace) if callable(self.config.namespace) else parts
        key = self.keys.get(kept)
        if key is None:
            if len(self.keys) >= CACHED_KEYS:
                self.keys.clear()
            secret = site_key.load() if self.backend.needs_site_key else ""
            key = self.keys[kept] = derive_key(secret, self.config.alias, *parts, namespace=namespace)
        return key

    def namespace(self) -> str:
        """The namespace of the calling context; "" for none. ImproperlyConfigured if a function returns no such."""
        found = self.config.namespace
        if isinstance(found, str):
            return found
        value = found()
        try:
            return checked_namespace(value)
        except (TypeError, ValueError) as error:
            raise ImproperlyConfigured(f"DISTLOCK[{self.config.alias!r}]: {error}") from error

    def known_names(self) -> dict[str, str]:
        """The names that this process used lately, by the keys that the engine lists."""
        return {self.backend.listed_as(key): key.full_name for key in list(self.keys.values())}


class _Entries(dict[str, Entry]):
    def __missing__(self, alias: str) -> Entry:
        if not isinstance(alias, str):
            raise TypeError(f"using must be a str, the alias in DISTLOCK, not {type(alias).__name__}.")
        return registry.add(alias, read_alias(alias), Entry)


class Registry:
    """The backends of ``DISTLOCK``, created at their first use.

    ``entry(alias)`` raises ImproperlyConfigured if the alias is not in ``DISTLOCK`` or its backend cannot be imported,
    and UnsupportedOperation under a scheduler that locks do not work with.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._entries = _Entries()
        # each acquire calls it, so it is no function of ours
        self.entry = self._entries.__getitem__

    def __iter__(self) -> Iterator[Backend]:
        """The backends made so far."""
        return iter([entry.backend for entry in list(self._entries.values())])

    def add(self, name: str, config: AliasConfig, kind: type[Entry]) -> Entry:
        """The entry ``name``, made once. It may have a name that ``DISTLOCK`` does not have, and another kind."""
        with self._guard:
            return self._entries.get(name) or self._add(name, config, kind)

    def _add(self, name: str, config: AliasConfig, kind: type[Entry]) -> Entry:
        alias = config.alias
        try:
            factory = import_string(config.backend)
        except ImportError as error:
            raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]: cannot import {config.backend!r}: {error}") from error
        if not (isinstance(factory, type) and issubclass(factory, Backend)):
            raise ImproperlyConfigured(f"DISTLOCK[{alias!r}]: {config.backend!r} is not a subclass of Backend.")
        backend = factory(alias, config.options)
        backend.wake_at = keepalive.wake_at
        backend.warn_hold_seconds = config.warn_hold_seconds
        entry = self._entries[name] = kind(config, backend)
        backend.known_names = entry.known_names
        return entry

    def aliases(self) -> list[str]:
        """Every alias of ``DISTLOCK``."""
        return list(configured())

    def close(self) -> None:
        """Close every session and thread. Held locks are lost; the backends may be used again."""
        for backend in self:
            backend.close()
        keepalive.rest()

    def reset(self) -> None:
        """:meth:`close`, and read the settings again at the next use."""
        with self._guard:
            entries = list(self._entries.values())
            self._entries.clear()
        name_log.forget()
        for entry in entries:
            for hold in lock_table.held(entry.backend):
                lock_table.lose(hold, "settings changed")
            try:
                entry.backend.close()
            except Exception:
                logger.exception("The backend of alias %r could not be closed.", entry.config.alias)

    def after_fork(self) -> None:
        """In the child: the sessions are the parent's, and so is the site key."""
        self._guard = threading.Lock()
        for entry in list(self._entries.values()):
            entry.keys.clear()
            entry.backend.after_fork()
        keepalive.backends = self


registry = Registry()
keepalive.backends = registry


def _settings_changed(*, setting: str, **kwargs: Any) -> None:
    if setting in ("DISTLOCK", "DATABASES"):
        registry.reset()
    elif setting == "DISTLOCK_SITE_KEY":
        registry.reset()
        site_key.forget()


at_fork(Order.SESSIONS, child=registry.after_fork)
setting_changed.connect(_settings_changed, dispatch_uid="django_distlock.registry")
