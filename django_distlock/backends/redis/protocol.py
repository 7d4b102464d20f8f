"""Names that Redlock still uses."""

from __future__ import annotations

from .connection import PENDING, Push, pack
from .scripts import Script, unknown_script

__all__ = ["PENDING", "Push", "ReplyError", "Script", "pack", "unknown_script"]

ReplyError = Exception
