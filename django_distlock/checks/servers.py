"""System checks that need a connection. `check --database` and `migrate` run them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.module_loading import import_string

from django_distlock.conf import configured, read_alias
from django_distlock.data.fencing.triggers import missing
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
    """Report servers whose lock sessions exclude nothing: an old version of GET_LOCK, a Galera node, a pooler that
    gives one session to several clients."""
    found: list[CheckMessage] = []
    for alias in configured() if databases else ():
        try:
            config = read_alias(alias)
            backend = import_string(config.backend)(alias, config.options)
        except (ImproperlyConfigured, ImportError):  # reported by check_settings
            continue
        if getattr(backend, "session_database", None) not in (databases or ()):
            continue
        try:
            list(backend.inspect())
        except ImproperlyConfigured as error:
            found.append(Error(str(error), id="distlock.E005"))
        except UnsupportedOperation as error:
            found.append(Warning(str(error), id="distlock.W006"))
        except DistlockError:  # the server does not answer: the settings may be right
            continue
        finally:
            backend.close()
    return found


@register(Tags.database)
@linked
def check_fences(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Report triggers of EnforceFence, of applied migrations, that are missing."""
    return [
        Warning(
            f"The trigger that keeps {trigger.column!r} of the table {trigger.table!r} from falling is missing in the "
            f"database {alias!r}.",
            hint="An old token can overwrite rows. Apply EnforceFence again in a new migration.",
            id="distlock.W003",
        )
        for alias in databases or ()
        for trigger in missing(connections[alias])
    ]
