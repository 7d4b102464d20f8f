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


class ReplayRun(models.Model):
    """One replay of double spending; `result` is testproject.wallet.records.Replay as JSON."""

    created = models.DateTimeField(auto_now_add=True)
    engine = models.CharField(max_length=20)
    result = models.JSONField()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.engine}, {self.created:%Y-%m-%d %H:%M}"
