"""The tables of the sign-ups, made and dropped by the measurement; the app is not installed."""

from __future__ import annotations

from django.db import models


class Person(models.Model):
    """What both kinds of account have."""

    password = models.CharField(max_length=128)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        abstract = True
        app_label = "signups"


class Account(Person):  # noqa: DJ008
    """An account whose table allows duplicates, as where the check is about more than one column."""

    email = models.CharField(max_length=254, db_index=True)

    class Meta(Person.Meta):
        abstract = False


class UniqueAccount(Person):  # noqa: DJ008
    """An account whose table refuses duplicates."""

    email = models.CharField(max_length=254, unique=True)

    class Meta(Person.Meta):
        abstract = False


class Door(models.Model):  # noqa: DJ008
    """The row that every registration locks in the entry "row"."""

    class Meta:
        app_label = "signups"


TABLES = (Account, UniqueAccount, Door)
