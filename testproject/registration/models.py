"""Accounts, and the row that registrations lock."""

from __future__ import annotations

from django.db import models


class Account(models.Model):
    """A registered person.

    `email` has no unique constraint on purpose: this app stands for the ones that cannot have it, because the table
    already holds duplicates, because the address is compared without case, or because the check spans two tables.
    Where a unique constraint fits, it is the right tool, and no lock is needed.
    """

    email = models.CharField(max_length=254)
    password = models.CharField(max_length=128)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return self.email


class Door(models.Model):
    """A row to lock, for work that no row of its own stands for; made by every ``migrate`` and ``flush``."""

    REGISTRATION = 1

    name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.name
