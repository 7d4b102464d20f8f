"""The link to the documentation at the end of each message of a check."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.core.checks import CheckMessage

    Check = Callable[..., list[CheckMessage]]

DOCS = "See docs: reference/checks.md."


def linked(check: Check) -> Check:
    """Wrap a check so that the hint of each message ends with a link to the documentation of its id."""

    @functools.wraps(check)
    def checked(*args: Any, **kwargs: Any) -> list[CheckMessage]:
        messages = check(*args, **kwargs)
        for message in messages:
            message.hint = f"{message.hint} {DOCS}" if message.hint else DOCS
        return messages

    return checked
