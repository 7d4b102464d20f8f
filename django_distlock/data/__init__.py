"""Locks on the data itself: tables, rows, and writes that the database fences."""
