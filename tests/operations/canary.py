"""Secrets that are looked for in everything the library says: logs, errors, repr, listings, checks, pages, output.

def test_pages(canary):                # the site key and all passwords of the project are canaries already
    secret = canary.make("password")   # one more
    canary.attempt(lambda: ...)        # whatever it raises is read, with causes and contexts
    canary.read("the page", response.content.decode())
# at the end everything that was read or logged is searched
"""

from __future__ import annotations

import base64
import logging
import secrets
import traceback
import urllib.parse
import warnings
from typing import TYPE_CHECKING, Any, Self

import pytest
from django.conf import settings
from django.db import connections

from tests.support import services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Canary(logging.Handler):
    """Reads every log record from DEBUG on while it is in use as a context manager."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.secrets: dict[str, str] = {}  # secret -> what it is
        self.texts: list[tuple[str, str]] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def make(self, what: str) -> str:
        """A new secret."""
        return self.know(what, "canary-" + secrets.token_hex(16))

    def know(self, what: str, secret: str) -> str:
        assert len(secret) >= 16, "too short to be told from other text"
        self.secrets[secret] = what
        return secret

    def emit(self, record: logging.LogRecord) -> None:
        assert "\n" not in record.getMessage() or not record.name.startswith("django_distlock"), record.getMessage()
        self.read(f"log {record.name}", self.format(record))

    def read(self, where: str, value: object) -> None:
        self.texts.append((where, str(value)))
        self.texts.append((where, repr(value)))

    def read_error(self, where: str, error: BaseException) -> None:
        """Its text, and those of everything behind it, as a traceback prints them."""
        self.read(where, "".join(traceback.format_exception(error)))
        seen: set[int] = set()
        pending: list[BaseException | None] = [error]
        while pending:
            each = pending.pop()
            if each is not None and id(each) not in seen:
                seen.add(id(each))
                self.read(where, each)
                pending += [each.__cause__, each.__context__]

    def attempt(self, action: Callable[[], Any], where: str = "attempt") -> Any:
        """Do it, and read what it gives or raises."""
        try:
            result = action()
        except Exception as error:
            self.read_error(where, error)
            return error
        self.read(where, result)
        return result

    def found(self) -> list[str]:
        """Where secrets were said, and in which form."""
        forms = {
            form: what
            for secret, what in self.secrets.items()
            for form in (
                secret,
                urllib.parse.quote(secret, safe=""),
                secret.encode().hex(),
                base64.b64encode(secret.encode()).decode().rstrip("="),
            )
        }
        return sorted(
            {
                f"{what} in {where}: {text[max(0, text.find(form) - 200) :][:300]}"
                for where, text in self.texts
                for form, what in forms.items()
                if form in text
            }
        )

    def __enter__(self) -> Self:
        self._catching = warnings.catch_warnings(record=True)
        self._caught: Any = self._catching.__enter__()
        warnings.simplefilter("always")
        self._levels = {name: logging.getLogger(name).level for name in ("", "django_distlock", "kazoo", "django")}
        for name in self._levels:
            logging.getLogger(name).setLevel(logging.DEBUG)
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        logging.getLogger().removeHandler(self)
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)
        for warning in self._caught:
            self.read("warning", warning.message)
        self._catching.__exit__(None, None, None)


@pytest.fixture
def canary() -> Iterator[Canary]:
    """The site key and the passwords of all databases and servers must not be said while the test runs."""
    mine = Canary()
    mine.know("site key", settings.DISTLOCK_SITE_KEY)
    for alias in connections:
        if password := connections.settings[alias].get("PASSWORD"):
            mine.know("password", password)
    for server in services.load().values():
        mine.know("password", server["password"])
    with mine:
        yield mine
    assert mine.texts, "nothing was read"
    assert not (found := mine.found()), "\n".join(found)
