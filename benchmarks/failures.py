"""Errors as one line of text, which crosses process boundaries and fits into a table."""

from __future__ import annotations

import traceback


def reason(error: BaseException) -> str:
    """Return class, message and place of the first error inside any groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
