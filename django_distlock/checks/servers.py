"""System checks that need a connection: `check --database` runs them, and so does each `migrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_distlock.conf import configured, read_alias
from django_distlock.exceptions import DistlockError, UnsupportedOperation

from .links import linked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django.apps import AppConfig


@register(Tags.database)  # not "distlock": with that tag Django 6.1 would connect without --database, too
@linked
def check_sessions(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Servers on which lock sessions exclude nobody, and so are refused: a GET_LOCK that is too old, a Galera node, a
    pooler that hands a session to several clients."""
    found: list[CheckMessage] = []
    for alias in configured() if databases else ():
        try:
            config = read_alias(alias)
            backend = import_string(config.backend)(alias, config.options)
        except (ImproperlyConfigured, ImportError):  # told by check_settings
            continue
        if getattr(backend, "session_database", None) not in (databases or ()):
            continue
        try:
            list(backend.inspect())
        except ImproperlyConfigured as error:
            found.append(Error(str(error), id="distlock.E005"))
        except UnsupportedOperation as error:
            found.append(Warning(str(error), id="distlock.W006"))
        except DistlockError:  # unreachable: no fault of the settings
            continue
        finally:
            backend.close()
    return found
