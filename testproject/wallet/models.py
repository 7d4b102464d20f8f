"""Accounts with money on them, and what the replays of double spending measured."""

from __future__ import annotations

from django.db import models

from django_distlock.data import LockingManager


class Account(models.Model):
    """`balance` is in cents. A constraint that keeps it from falling below zero would refuse the second of two
    withdrawals only if both wrote a difference; who writes what it has computed overwrites the other one in silence.
    """

    owner = models.CharField(max_length=50)
    balance = models.IntegerField(default=0)

    objects = LockingManager()

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.owner


class Receipt(models.Model):
    """A message that was acted upon, stored in the transaction of what it did: its key lets each message act once.

    A UUID and not a text, because MariaDB takes "a" and "A" for one text. A receipt may go when the broker cannot
    deliver its message any more.
    """

    message = models.UUIDField(primary_key=True)
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return str(self.message)


class Run(models.Model):
    """What one replay measured, as JSON."""

    created = models.DateTimeField(auto_now_add=True)
    engine = models.CharField(max_length=20)
    result = models.JSONField()

    class Meta:
        abstract = True
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.engine}, {self.created:%Y-%m-%d %H:%M}"


class ReplayRun(Run):
    """One replay of double spending; `result` is testproject.wallet.records.Replay as JSON."""


class ConsumerRun(Run):
    """One replay of the consumer; `result` is testproject.wallet.deliveries.Replay as JSON."""
