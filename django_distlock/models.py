"""What is kept in the database: the site key, and the lease table with its queue. And what the admin knows as a model.

The models are for reading. The backends write with statements of their own, on sessions of their own.
"""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .schema import AsciiField


class Undumped(models.Manager):  # type: ignore[type-arg]  # not subscriptable at run time
    """Nothing. ``dumpdata`` asks it: a table may be missing on this database, and what is in it is of use nowhere else;
    the site key least of all, and stored answers are nobody else's business."""

    def get_queryset(self) -> models.QuerySet[models.Model]:
        return super().get_queryset().none()


class Rows(models.Model):
    """What belongs to one database and to those who use it now: ``rows`` reads the table."""

    objects = Undumped()
    rows = models.Manager()  # noqa: DJ012 - fields and managers of a base class

    class Meta:
        abstract = True
        base_manager_name = "objects"  # that of `dumpdata --all`


class SiteKey(Rows):
    """One row: the key that every lock name of this site is hashed with. It is never shown."""

    id = models.SmallIntegerField(primary_key=True)
    site_key = models.CharField(max_length=128)

    class Meta:
        managed = False
        db_table = "django_distlock_sitekey"
        default_permissions = ()

    def __str__(self) -> str:
        return "site key"


class LeaseRow(Rows):
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


class LeaseTicket(Rows):
    """The place of one waiter in the queue for a lease; it is passed over if ``seen`` is long ago."""

    token = AsciiField(primary_key=True, max_length=64)
    digest = AsciiField(max_length=64)
    arrived = models.BigIntegerField()
    seen = models.BigIntegerField()
    holder = AsciiField(max_length=255, null=True)  # null: by a process of an older version

    class Meta:
        managed = False
        db_table = "django_distlock_ticket"
        default_permissions = ()
        indexes = (models.Index(fields=["digest", "arrived"], name="distlock_ticket_queue"),)

    def __str__(self) -> str:
        return str(self.digest)


class LockName(Rows):
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


class LockEvent(Rows):
    """Something that happened to a lock, for its recent history; recorded if ``DISTLOCK_HISTORY_DAYS`` is set.

    ``digest`` is a hash of the name's exact code points: databases compare text by rules of their own.
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


class HeldLock(Rows):
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


class IdempotencyRecord(Rows):
    """What is known of one idempotency key of one principal on one route; written by ``idempotency/storage`` only.
    Times are microseconds since 1970 by the clock of the database. A managed table: who empties his data forgets what
    was done to them."""

    scope = AsciiField(primary_key=True, max_length=64)
    state = AsciiField(_("state"), max_length=10)
    owner = AsciiField(max_length=32)
    fingerprint = AsciiField(max_length=64)
    principal = models.CharField(_("principal"), max_length=255)
    method = AsciiField(_("method"), max_length=10)
    route = models.CharField(_("route"), max_length=255)
    phases = models.TextField()
    status = models.SmallIntegerField(_("status"), null=True)
    facts = models.TextField(null=True)  # noqa: DJ001 - no answer is not an empty one
    body = models.BinaryField(null=True)
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
