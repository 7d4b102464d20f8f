"""Locks that belong to a database session: what PostgreSQL and MySQL share."""
