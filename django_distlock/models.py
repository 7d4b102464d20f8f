"""The tables of the package, and the model of the admin's page of held locks.

The models are for reading. Backends and storages write by their own SQL, mostly on their own sessions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import models
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper


class AsciiField(models.CharField):  # type: ignore[type-arg]  # not subscriptable at run time
    """Text of ASCII characters, compared byte by byte: an index entry is as small as it can be.

    PostgreSQL gets the long spelling of varchar: for the short one Django adds an index for LIKE to each unique column.
    """

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        if connection.vendor == "postgresql":
            return f'character varying({self.max_length}) COLLATE "C"'
        if connection.vendor == "mysql":
            return f"varchar({self.max_length}) CHARACTER SET ascii COLLATE ascii_bin"
        return super().db_type(connection)


class EmptyManager(models.Manager):  # type: ignore[type-arg]  # not subscriptable at run time
    """Always empty. ``dumpdata`` uses it: the table may be missing in this database, its rows are useless elsewhere,
    and the site key and stored responses are confidential."""

    def get_queryset(self) -> models.QuerySet[models.Model]:
        return super().get_queryset().none()


class KeptModel(models.Model):
    """Base class of rows that have a meaning only in their database. ``rows`` reads the table."""

    objects = EmptyManager()
    rows = models.Manager()  # noqa: DJ012 - fields and managers of a base class

    class Meta:
        abstract = True
        base_manager_name = "objects"  # used by `dumpdata --all`

    def __str__(self) -> str:
        return str(self.pk)


class SiteKey(KeptModel):
    """One row: the key with which the lock names of this site are hashed. It is never shown."""

    id = models.SmallIntegerField(primary_key=True)
    site_key = models.CharField(max_length=128)

    class Meta:
        managed = False
        db_table = "django_distlock_sitekey"
        default_permissions = ()


class LeaseRow(KeptModel):
    """The latest lease of a name; it is free after ``expires_at``. Times are microseconds since 1970 by the clock of
    the database, independent of time zones. Not on SQLite, where leases are in a separate file."""

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


class LeaseTicket(KeptModel):
    """The place of a waiter in the queue for a lease. The queue skips it if ``seen`` is too long ago."""

    token = AsciiField(primary_key=True, max_length=64)
    digest = AsciiField(max_length=64)
    arrived = models.BigIntegerField()
    seen = models.BigIntegerField()
    holder = AsciiField(max_length=255, null=True)

    class Meta:
        managed = False
        db_table = "django_distlock_ticket"
        default_permissions = ()
        indexes = (models.Index(fields=["digest", "arrived"], name="distlock_ticket_queue"),)


class LockName(KeptModel):
    """The name of a hashed key, on PostgreSQL and MySQL, and its latest holder that held it for over a second.

    ``session`` is the server's number of the session that held the lock
    when the row was written, ``since`` when that hold began. A row stays after its hold has ended.
    """

    key = AsciiField(primary_key=True, max_length=64, db_column="lock_key")
    alias = AsciiField(max_length=255)
    name = models.TextField()
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


class LockEvent(KeptModel):
    """An event in the history of a lock; recorded if ``DISTLOCK_HISTORY_DAYS`` is set.

    ``digest`` is a hash of the name's exact code points, because databases compare text by different rules.
    """

    alias = AsciiField(max_length=255)
    digest = AsciiField(max_length=32)
    name = models.CharField(max_length=512)
    kind = AsciiField(max_length=16)
    at = models.DateTimeField()
    wait = models.FloatField(null=True)
    hold = models.FloatField(null=True)
    fence = models.BigIntegerField(null=True)
    reason = models.CharField(max_length=255)
    holder = models.CharField(max_length=255)

    class Meta:
        db_table = "django_distlock_event"
        default_permissions = ()
        indexes = (
            models.Index(fields=["digest", "alias", "at"], name="distlock_event_of_lock"),
            models.Index(fields=["at"], name="distlock_event_at"),
        )

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class HeldLock(KeptModel):
    """The model of the admin's page of held locks and of its permissions. It has no table: its rows come from
    :func:`django_distlock.held_locks`."""

    key = models.CharField(primary_key=True, max_length=255)

    class Meta:
        managed = False
        verbose_name = _("held lock")
        verbose_name_plural = _("held locks")
        default_permissions = ("view",)
        permissions = (("break_lock", _("Can break held locks")),)


class IdempotencyRecord(KeptModel):
    """One idempotency key of one principal on one route; written by ``idempotency/storage`` only. Times are
    microseconds since 1970 by the clock of the database. A managed table, because ``flush`` also deletes the data that
    the stored responses are about."""

    scope = AsciiField(primary_key=True, max_length=64)
    state = AsciiField(_("state"), max_length=10)
    owner = AsciiField(max_length=32)
    fingerprint = AsciiField(max_length=64)
    principal = models.CharField(_("principal"), max_length=255)
    method = AsciiField(_("method"), max_length=10)
    route = models.CharField(_("route"), max_length=255)
    phases = models.TextField()
    status = models.SmallIntegerField(_("status"), null=True)
    answer = models.BinaryField(null=True)
    claimed_at = models.BigIntegerField()
    expires_at = models.BigIntegerField()
    lives_until = models.BigIntegerField()

    class Meta:
        db_table = "django_distlock_idempotency"
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        default_permissions = ("view",)
        permissions = (("release_idempotencyrecord", _("Can release stuck idempotency keys")),)
        indexes = (
            models.Index(fields=["lives_until"], name="distlock_idempotency_ends"),
            models.Index(fields=["principal", "lives_until"], name="distlock_idempotency_whose"),
        )

    def __str__(self) -> str:
        return f"{self.method} {self.route}"


class WebLease(KeptModel):
    """Who edits an object, or holds a name that browsers lock (``model`` is "" then); who wrote the object last.

    Written by ``leases`` only; it decides alone. Times are microseconds since 1970 by the clock of the database. A
    managed table, because ``flush`` also deletes the objects and users. ``fence`` and ``writes`` begin at the time at
    which the row is made: a row that was swept never counts the same numbers again.
    """

    digest = AsciiField(primary_key=True, max_length=64)
    model = models.CharField(max_length=255)
    name = models.TextField()
    lease = AsciiField(max_length=64)
    principal = AsciiField(max_length=255)
    label = models.CharField(max_length=255)
    fence = models.BigIntegerField()
    writes = models.BigIntegerField()
    since = models.BigIntegerField()
    active_at = models.BigIntegerField()
    expires_at = models.BigIntegerField()
    ends_at = models.BigIntegerField()
    page_left = models.SmallIntegerField()
    previous = AsciiField(max_length=64)
    ended = AsciiField(max_length=16)
    changed_at = models.BigIntegerField()
    changed_by = models.CharField(max_length=255)

    class Meta:
        db_table = "django_distlock_weblease"
        verbose_name = _("edit lock")
        verbose_name_plural = _("edit locks")
        default_permissions = ()
        permissions = (("takeover_editlease", _("Can take over what another user is editing")),)
        indexes = (
            models.Index(fields=["expires_at"], name="distlock_weblease_ends"),
            models.Index(fields=["principal", "expires_at"], name="distlock_weblease_whose"),
        )

    def __str__(self) -> str:
        return f"{self.model} {self.name}".strip()


class BrowserTicket(KeptModel):
    """The place of a waiter for a name that browsers lock. Tickets order, and decide nothing; the queue skips those
    that are no longer alive."""

    holder = AsciiField(primary_key=True, max_length=64)
    digest = AsciiField(max_length=64)
    lease = AsciiField(max_length=64)
    principal = AsciiField(max_length=255)
    arrived = models.BigIntegerField()
    alive_until = models.BigIntegerField()

    class Meta:
        db_table = "django_distlock_browserticket"
        default_permissions = ()
        indexes = (
            models.Index(fields=["digest", "arrived"], name="distlock_browserticket_queue"),
            models.Index(fields=["principal"], name="distlock_browserticket_whose"),
        )
