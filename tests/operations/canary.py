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
import warnings
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from django.conf import settings
from django.db import connections

from tests.support import services

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Canary(logging.Handler):
    """Reads every log record from DEBUG on, and every warning, while it is :meth:`listening`."""

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
        self.texts += [(where, str(value)), (where, repr(value))]

    def attempt(self, action: Callable[[], Any], where: str = "attempt") -> Any:
        """Do it, and read what it gives or raises, with everything behind that, whether a traceback prints it or
        not."""
        try:
            result: Any = action()
            self.read(where, result)
        except Exception as error:
            result, behind = error, [error]
            for each in behind:
                self.read(where, "".join(traceback.format_exception(each, chain=False)))
                self.read(where, each)
                more = (each.__cause__, each.__context__)
                behind += [other for other in more if other is not None and other not in behind]
        return result

    def found(self) -> list[str]:
        """Where secrets were said, and in which form."""
        return sorted(
            {
                f"{what} in {where}: {text[max(0, text.find(form) - 200) :][:300]}"
                for secret, what in self.secrets.items()
                for form in (
                    secret,
                    quote(secret, safe=""),
                    secret.encode().hex(),
                    base64.b64encode(secret.encode()).decode().rstrip("="),
                )
                for where, text in self.texts
                if form in text
            }
        )

    @contextmanager
    def listening(self) -> Iterator[None]:
        with warnings.catch_warnings(record=True) as caught, ExitStack() as stack:
            warnings.simplefilter("always")
            for name in ("", "django_distlock", "kazoo", "django"):
                logger = logging.getLogger(name)
                stack.callback(logger.setLevel, logger.level)
                logger.setLevel(logging.DEBUG)
            logging.getLogger().addHandler(self)
            stack.callback(logging.getLogger().removeHandler, self)
            yield
        for warning in caught:
            self.read("warning", warning.message)


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
    with mine.listening():
        yield mine
    assert mine.texts, "nothing was read"
    assert not (found := mine.found()), "\n".join(found)
