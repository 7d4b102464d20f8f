"""A name that Redlock still uses."""

from .pool import Places

__all__ = ["Places"]
