"""What the scenes act upon. No constraint keeps any of it right, on purpose: where one can, it is the right tool."""

from __future__ import annotations

from django.db import models

from django_distlock.data import FencedModel, LockingManager


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
    """A message that was acted upon, stored in the transaction of what it did: its key lets each message act once. It
    may go when the broker cannot deliver its message any more."""

    message = models.UUIDField(primary_key=True)
    created = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return str(self.message)


class Item(FencedModel):
    """Something with a stock. A sale takes a while between look and write."""

    enforce_fence = True

    name = models.CharField(max_length=50)
    stock = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.name}: {self.stock}"


class Schedule(FencedModel):
    """A job that is due every so often: `last` is the slot that was run last. The job takes a while between the look at
    it and the write; one that fits into a transaction needs no more than `UPDATE ... SET last = 8 WHERE last = 7`."""

    enforce_fence = True

    name = models.CharField(max_length=50)
    last = models.IntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.name}: {self.last}"


class Job(models.Model):
    """One run of a slot by one copy of the scheduler. Nothing keeps a slot from having two: a mail that was sent does
    not come back."""

    schedule = models.ForeignKey(Schedule, models.CASCADE, related_name="jobs")
    slot = models.IntegerField()
    process = models.IntegerField()

    def __str__(self) -> str:
        return f"slot {self.slot}, process {self.process}"
