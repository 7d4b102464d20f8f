"""Models whose managers lock."""

from __future__ import annotations

from django.db import models

from django_distlock.data.managers import LockingManager, LockingQuerySet


class RichQuerySet(LockingQuerySet):
    """A project's own."""

    def rich(self) -> RichQuerySet:
        return self.filter(balance__gte=1000)


class OpenEntries(LockingManager):
    use_in_migrations = True

    def get_queryset(self) -> LockingQuerySet:
        return super().get_queryset().filter(open=True)


class Wallet(models.Model):
    owner = models.CharField(max_length=50)
    balance = models.IntegerField(default=0)
    objects = LockingManager()
    wallets = LockingManager.from_queryset(RichQuerySet)()

    def __str__(self) -> str:
        return self.owner


class WalletProxy(Wallet):
    class Meta:
        proxy = True


class Entry(models.Model):
    wallet = models.ForeignKey(Wallet, models.CASCADE, related_name="entries")
    open = models.BooleanField(default=True)
    entries = OpenEntries()
    objects = LockingQuerySet.as_manager()

    def __str__(self) -> str:
        return str(self.pk)
