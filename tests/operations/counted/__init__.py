"""Migrations that do harm, or fail, when they are applied twice."""
