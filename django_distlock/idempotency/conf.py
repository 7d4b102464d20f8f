"""The setting ``DISTLOCK_IDEMPOTENCY``, and what an option of ``@idempotent`` may be.

``settings`` are Django's; modules beside this one take them from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, Literal, get_type_hints

from asgiref.sync import iscoroutinefunction
from django.conf import settings as settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch

from django_distlock.conf import function
from django_distlock.validation import choice, count, flag, seconds

OnCrash = Literal["retry", "hold"] | Callable[..., Any]
OnStoreError = Literal["closed", "open"]


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
_policy = _must_be(
    '"retry", "hold" or a callable', lambda value: callable(value) or value in ("retry", "hold"), ValueError
)
_atomic = _must_be("a bool or an alias in DATABASES", lambda value: isinstance(value, (bool, str)) and value != "")
_names = _must_be(
    "a list of names of fields",
    lambda value: not isinstance(value, str) and all(isinstance(each, str) for each in value),
)
_lifetime = partial(seconds, positive=True)


def _maybe(name: str, value: Any) -> Any:
    return None if value is None else count(name, value)


def _tenant(name: str, value: Any) -> Any:
    return None if value is None else _of_request(name, function(name, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What holds for a request: the setting of the site, with the options of its view in place of some values.

    Times in seconds, sizes in bytes. Beside each type is the check of a given value.
    """

    storage: Annotated[str, partial(choice, known=("database", "cache"))] = "database"
    database: Annotated[str, _text] = "default"
    cache: Annotated[str, _text] = "default"
    purge_every: Annotated[float | None, partial(seconds, none=True, positive=True)] = 300.0
    form_wait: Annotated[float, seconds] = 2.0
    max_body: Annotated[int, count] = 256 * 1024
    max_keys: Annotated[int | None, _maybe] = None
    credentials: Annotated[bool, flag] = True
    max_upload: Annotated[int, count] = 100 * 1024 * 1024
    encrypt: Annotated[bool, flag] = False
    # a view may have its own
    ttl: Annotated[float, _lifetime] = 86400.0
    claim_ttl: Annotated[float, _lifetime] = 30.0
    wait: Annotated[float, seconds] = 0.0
    on_crash: Annotated[OnCrash, _policy] = "hold"
    on_store_error: Annotated[OnStoreError, partial(choice, known=("closed", "open"))] = "closed"
    replay_to_credentials: Annotated[bool, flag] = False
    scope: Annotated[Callable[[Any], str] | None, _tenant] = None
    # of a view alone
    required: Annotated[bool, flag] = False
    atomic: Annotated[bool | str, _atomic] = False
    fingerprint_exclude: Annotated[Collection[str], _names] = ()
    key: Annotated[Callable[[Any], str | None] | None, _of_request] = None
    anonymous: Annotated[bool, flag] = False
    fingerprint: Annotated[Callable[[Any], str | bytes] | None, _of_request] = None


CHECKS = {name: kind.__metadata__[0] for name, kind in get_type_hints(Options, include_extras=True).items()}
OF_SITE = tuple(CHECKS)[: tuple(CHECKS).index("required")]
OF_VIEW = tuple(CHECKS)[tuple(CHECKS).index("ttl") :]


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


def user_model() -> str:
    """The label of AUTH_USER_MODEL."""
    return settings.AUTH_USER_MODEL.lower()


def login_url() -> str | None:
    """The address to which ``login_required`` redirects, if there is one."""
    if not settings.LOGIN_URL:
        return None
    try:
        return resolve_url(settings.LOGIN_URL)
    except NoReverseMatch:
        return None


def _clear(*, setting: str, **kwargs: Any) -> None:
    if setting == "DISTLOCK_IDEMPOTENCY":
        config.cache_clear()


setting_changed.connect(_clear)
