"""What a lock costs, side by side with the bare drivers and with other libraries: ``python -m benchmarks``.

Every figure that counts is a ratio taken within one run; absolute times depend on the machine. README.md beside this
file says how to read them.
"""

from __future__ import annotations

import traceback


def reason(error: BaseException) -> str:
    """Return class, message and place of the first error inside any groups, as one line of text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"
