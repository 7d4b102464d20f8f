"""One model for each shape of table that a lock has to cope with."""

from __future__ import annotations

from django.db import models

from django_distlock.data.fencing.model import FencedModel

from .locking import Entry, Wallet, WalletProxy  # noqa: F401 - models are found here


class Account(models.Model):
    owner = models.CharField(max_length=50)
    balance = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.owner


class AccountProxy(Account):
    class Meta:
        proxy = True


class UnmanagedAccount(models.Model):
    """The table of Account under another model."""

    owner = models.CharField(max_length=50)
    balance = models.IntegerField(default=0)

    class Meta:
        managed = False
        db_table = "dataapp_account"

    def __str__(self) -> str:
        return self.owner


class Currency(models.Model):
    code = models.CharField(max_length=3, primary_key=True)
    rate = models.IntegerField(default=1)

    def __str__(self) -> str:
        return self.code


class Place(models.Model):
    name = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.name


class Restaurant(Place):
    """Multi-table inheritance: two tables."""

    seats = models.IntegerField(default=0)


class Course(models.Model):
    title = models.CharField(max_length=50)

    def __str__(self) -> str:
        return self.title


class Student(models.Model):
    name = models.CharField(max_length=50)
    courses = models.ManyToManyField(Course, related_name="students")

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """A foreign key to itself: self-joins."""

    name = models.CharField(max_length=50)
    parent = models.ForeignKey("self", models.CASCADE, null=True, blank=True, related_name="children")

    def __str__(self) -> str:
        return self.name


class Ledger(models.Model):
    """A table name that needs quoting on every engine."""

    amount = models.IntegerField(default=0)

    class Meta:
        db_table = "dataapp O'Hara Ledger"

    def __str__(self) -> str:
        return str(self.amount)


class QuotedLedger(models.Model):
    """The same table for PostgreSQL and SQLite, its name quoted by the model; Django leaves such a name as it is."""

    amount = models.IntegerField(default=0)

    class Meta:
        managed = False
        db_table = '"dataapp O\'Hara Ledger"'

    def __str__(self) -> str:
        return str(self.amount)


class Register(FencedModel):
    owner = models.CharField(max_length=50)
    balance = models.IntegerField(default=0)

    def __str__(self) -> str:
        return self.owner


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

    def __str__(self) -> str:
        return str(self.amount)
