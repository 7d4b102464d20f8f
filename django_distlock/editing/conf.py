"""The setting ``DISTLOCK_EDITING``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_distlock.conf import function
from django_distlock.http.visitors import default_label
from django_distlock.validation import choice, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class EditingConfig:
    """The keys of ``DISTLOCK_EDITING`` in lower case, with their defaults; times in seconds."""

    mode: str = "enforce"
    when: str = "change"
    # Browsers run the timers of a hidden tab once a minute: two of its beats may be lost.
    ttl: float = 150.0
    beat: float = 20.0
    idle: float = 900.0
    # How long a rendered form may come back. Rows are kept for as long after their last use.
    form_ttl: float = 14 * 86400.0
    label: Callable[[Any], str] | None = None
    takeover: Callable[..., bool] | None = None

    def label_of(self, user: Any) -> str:
        """How ``user`` is shown to others."""
        return str(self.label(user) if self.label is not None else default_label(user))


KEYS = tuple(field.name.upper() for field in fields(EditingConfig))
CHOICES = {"mode": ("enforce", "warn", "off"), "when": ("change", "open")}
# Those that one admin, view or tag may set otherwise. Beats, and forms of another page of the same object, need the
# others to be the same on the whole site.
OWN = ("MODE", "WHEN", "IDLE", "TAKEOVER")
TIMES = ("ttl", "beat", "idle", "form_ttl")


def config(**overrides: Any) -> EditingConfig:
    """The setting, with the values that an admin, a view or a tag sets otherwise (None: as in the setting).

    ImproperlyConfigured for an unknown key, one that counts for the whole site, or a wrong value.
    """
    require_own(overrides)
    given = {name: value for name, value in overrides.items() if value is not None}
    return _merged(_config(), given, "The options of an edit lock") if given else _config()


def require_own(names: Iterable[str]) -> None:
    """ImproperlyConfigured if one of the options can be set for the whole site only."""
    for name in names:
        if name.upper() not in OWN:
            raise ImproperlyConfigured(
                f"{name.upper()} is no option of a single edit lock. These are: {', '.join(OWN)}; the others of "
                "DISTLOCK_EDITING count for the whole site."
            )


def is_set() -> bool:
    """Does the project have the setting?"""
    return getattr(settings, "DISTLOCK_EDITING", None) is not None


def has_login() -> bool:
    """Is there a page to log in?"""
    return bool(settings.LOGIN_URL)


@cache
def _config() -> EditingConfig:
    given = getattr(settings, "DISTLOCK_EDITING", None) or {}
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured("DISTLOCK_EDITING must be a dict.")
    return _merged(EditingConfig(), {str(key).lower(): value for key, value in given.items()}, "DISTLOCK_EDITING")


def _merged(base: EditingConfig, given: Mapping[str, Any], source: str) -> EditingConfig:
    unknown = [name.upper() for name in given if name.upper() not in KEYS]
    if unknown:
        raise ImproperlyConfigured(f"{source} has the unknown key {unknown[0]!r}. Known: {', '.join(KEYS)}.")
    try:
        found = replace(base, **{name: _checked(name, value) for name, value in given.items()})
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"{source}: {error}") from error
    if found.beat >= found.ttl:
        raise ImproperlyConfigured(
            f"{source}: BEAT ({found.beat:g} s) must be shorter than TTL ({found.ttl:g} s); a third of it is usual."
        )
    return found


def _checked(name: str, value: Any) -> Any:
    key = name.upper()
    if name in TIMES:
        return seconds(key, value, positive=True)
    if name in CHOICES:
        return choice(key, value, CHOICES[name])
    return function(key, value)


def _clear(*, setting: str, **kwargs: Any) -> None:
    if setting == "DISTLOCK_EDITING":
        _config.cache_clear()


setting_changed.connect(_clear)
