"""The table of backends in Markdown, made from the capability flags of the ``Backend`` subclasses.

The directive of ``generated.py`` shows it.
"""

from __future__ import annotations

import importlib
import importlib.util
from inspect import isabstract
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_distlock.backends.base import Backend

# flag -> what the table calls it
FEATURES = {
    "needs_site_key": "seen by other processes",
    "supports_transaction_scope": "can belong to the caller's transaction",
    "supports_shared": "shared locks",
    "supports_ttl": "TTL",
    "supports_fencing": "fencing token",
    "supports_semaphore": "semaphores in order of arrival",
    "waits_natively": "waits without polling",
}
# What people call an engine, by the module of its backend, which is also the name of its page.
ENGINES = {
    "postgres": "PostgreSQL",
    "mysql": "MySQL, MariaDB",
    "redis": "Redis",
    "redlock": "Redlock",
    "zookeeper": "ZooKeeper",
    "leasetable": "lease table",
    "memory": "memory",
}
# The backend for tests has no page of its own.
PAGES = {"memory": "usage/testing"}


def backends() -> list[type[Backend]]:
    """Every backend class that DISTLOCK can name, in the order of ENGINES."""
    return sorted(
        (
            value
            for engine in ENGINES
            for value in vars(importlib.import_module(_module_of_engine(engine))).values()
            if _is_backend_of(value, engine)
        ),
        key=lambda value: list(ENGINES).index(module_of(value)),
    )


def _module_of_engine(engine: str) -> str:
    """An engine is a package, or one module where it is small."""
    package = f"django_distlock.backends.{engine}"
    is_package = importlib.util.find_spec(package).submodule_search_locations is not None
    return f"{package}.backend" if is_package else package


def _is_backend_of(value: object, module: str) -> bool:
    from django_distlock.backends.base import Backend

    return (
        isinstance(value, type) and issubclass(value, Backend) and not isabstract(value) and module_of(value) == module
    )


def module_of(backend: type[Backend]) -> str:
    """django_distlock.backends.postgres.backend -> postgres, which is also the name of its page."""
    return backend.__module__.split(".")[2]


def page_of(module: str) -> str:
    """The page about a backend, without the suffix."""
    return PAGES.get(module, f"backends/{module}")


def path_of(backend: type[Backend]) -> str:
    """What DISTLOCK names: the package of an engine shows its backend."""
    return f"django_distlock.backends.{module_of(backend)}.{backend.__name__}"


def promise(backend: type[Backend]) -> str:
    """The class of promise, as the page on guarantees names it."""
    if not backend.needs_site_key:
        return "-"
    if backend.supports_ttl or backend.supports_fencing:
        return "C"
    return "A inside a transaction, else B" if backend.supports_transaction_scope else "B"


def table(link: str) -> str:
    """The table in Markdown. ``link`` is a format with ``engine``, ``module`` and ``page`` for each column's head."""
    found = backends()
    modules = [module_of(backend) for backend in found]
    rows = [
        ["", *(link.format(engine=ENGINES[name], module=name, page=page_of(name)) for name in modules)],
        ["---"] * (1 + len(found)),
        ["class of promise", *(promise(backend) for backend in found)],
    ]
    for flag, feature in FEATURES.items():
        rows.append([feature, *("yes" if getattr(backend, flag) else "no" for backend in found)])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
