"""Names that Redlock still uses."""

from __future__ import annotations

from .commands import Script, unknown_script
from .connection import PENDING, Push, pack

__all__ = ["PENDING", "Push", "ReplyError", "Script", "pack", "unknown_script"]

ReplyError = Exception
