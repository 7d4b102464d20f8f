"""Accounts, and what the replays of the race measured."""

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


class ReplayRun(models.Model):
    """One replay of the registration race; `result` is testproject.replay.records.Replay as JSON."""

    created = models.DateTimeField(auto_now_add=True)
    engine = models.CharField(max_length=20)
    atomic_requests = models.BooleanField()
    result = models.JSONField()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.engine}, {self.created:%Y-%m-%d %H:%M}"
