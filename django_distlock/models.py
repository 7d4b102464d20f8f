"""What is kept in the database: the site key, and the lease table with its queue. And what the admin knows as a model.

The models are for reading. The backends write with statements of their own, on sessions of their own.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .tables import AsciiField


class SiteKey(models.Model):
    """One row: the key that every lock name of this site is hashed with. It is never shown."""

    id = models.SmallIntegerField(primary_key=True)
    site_key = models.CharField(max_length=128)

    class Meta:
        managed = False
        db_table = "django_distlock_sitekey"
        default_permissions = ()

    def __str__(self) -> str:
        return "site key"


class LeaseRow(models.Model):
    """The latest lease of one name; free if ``expires_at`` is over. Times are microseconds since 1970 by the clock of
    the database, so that no time zone matters. Not on SQLite, where leases have a file of their own."""

    digest = AsciiField(primary_key=True, max_length=64)
    alias = AsciiField(max_length=255)
    name = models.TextField()
    token = AsciiField(max_length=64)
    fence = models.BigIntegerField()
    acquired_at = models.BigIntegerField()
    expires_at = models.BigIntegerField()
    holder = AsciiField(max_length=255)

    class Meta:
        managed = False
        db_table = "django_distlock_lease"
        default_permissions = ()

    def __str__(self) -> str:
        return self.name


class LeaseTicket(models.Model):
    """The place of one waiter in the queue for a lease; it is passed over if ``seen`` is long ago."""

    token = AsciiField(primary_key=True, max_length=64)
    digest = AsciiField(max_length=64)
    arrived = models.BigIntegerField()
    seen = models.BigIntegerField()

    class Meta:
        managed = False
        db_table = "django_distlock_ticket"
        default_permissions = ()
        indexes = (models.Index(fields=["digest", "arrived"], name="distlock_ticket_queue"),)

    def __str__(self) -> str:
        return str(self.digest)


class LockName(models.Model):
    """What a hashed key stands for, on PostgreSQL and MySQL: its name, and who has held it for longer than a moment.

    ``other`` is a second name with the same key, if there is one. ``session`` is what the server calls the session that
    held the lock when this was written, ``since`` when that began; a row of a hold that is over stays until the next.
    """

    key = AsciiField(primary_key=True, max_length=64, db_column="lock_key")
    alias = AsciiField(max_length=255)
    name = models.TextField()
    other = models.TextField()
    seen_at = models.BigIntegerField()
    session = models.BigIntegerField()
    since = models.BigIntegerField()
    holder = AsciiField(max_length=255)

    class Meta:
        managed = False
        db_table = "django_distlock_name"
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.name)


class HeldLock(models.Model):
    """No table: what the admin's page of held locks and its permissions belong to. Its rows come from
    :func:`django_distlock.held_locks`."""

    key = models.CharField(primary_key=True, max_length=255)

    class Meta:
        managed = False
        verbose_name = _("held lock")
        verbose_name_plural = _("held locks")
        default_permissions = ("view",)
        permissions = (("break_lock", _("Can break held locks")),)

    def __str__(self) -> str:
        return str(self.key)
