"""Lease table: leases as rows, on SQLite, PostgreSQL, MySQL and MariaDB."""

from __future__ import annotations

from .backend import LeaseTableBackend

__all__ = ["LeaseTableBackend"]
