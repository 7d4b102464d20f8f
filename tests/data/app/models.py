"""One model for each shape of table that a lock has to cope with."""

from __future__ import annotations

from django.db import models

from django_distlock.data.fencing.model import FencedModel

from .locking import Entry, Wallet, WalletProxy  # noqa: F401 - models are found here


class Shape(models.Model):
    class Meta:
        abstract = True

    def __str__(self) -> str:
        """The first field after the primary key, or the key itself."""
        return str(getattr(self, self._meta.concrete_fields[0 if type(self) is Currency else 1].attname))


class Account(Shape):
    owner = models.CharField(max_length=50)
    balance = models.IntegerField(default=0)


class AccountProxy(Account):
    class Meta:
        proxy = True


class UnmanagedAccount(Shape):
    """The table of Account under another model."""

    owner = models.CharField(max_length=50)
    balance = models.IntegerField(default=0)

    class Meta:
        managed = False
        db_table = "dataapp_account"


class Currency(Shape):
    code = models.CharField(max_length=3, primary_key=True)
    rate = models.IntegerField(default=1)


class Place(Shape):
    name = models.CharField(max_length=50)


class Restaurant(Place):
    """Multi-table inheritance: two tables."""

    seats = models.IntegerField(default=0)


class Course(Shape):
    title = models.CharField(max_length=50)


class Student(Shape):
    name = models.CharField(max_length=50)
    courses = models.ManyToManyField(Course, related_name="students")


class Node(Shape):
    """A foreign key to itself: self-joins."""

    name = models.CharField(max_length=50)
    parent = models.ForeignKey("self", models.CASCADE, null=True, blank=True, related_name="children")


class Ledger(Shape):
    """A table name that needs quoting on every engine."""

    amount = models.IntegerField(default=0)

    class Meta:
        db_table = "dataapp O'Hara Ledger"


class QuotedLedger(Shape):
    """The same table for PostgreSQL and SQLite, its name quoted by the model; Django leaves such a name as it is."""

    amount = models.IntegerField(default=0)

    class Meta:
        managed = False
        db_table = '"dataapp O\'Hara Ledger"'


class Register(FencedModel):
    owner = models.CharField(max_length=50)
    balance = models.IntegerField(default=0)


class RegisterProxy(Register):
    class Meta:
        proxy = True


class CashRegister(Register):
    """Multi-table inheritance: the fence is in the parent's table."""

    drawer = models.IntegerField(default=0)


class FencedLedger(FencedModel):
    amount = models.IntegerField(default=0)

    class Meta:
        db_table = "dataapp O'Hara Fenced"
