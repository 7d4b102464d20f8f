"""The list of idempotency keys in the admin, with an action that releases stuck keys."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from django_distlock.models import IdempotencyRecord

from .conf import config
from .records import COMPLETED
from .storage import table_in

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

SHOWN = ("method", "route", "principal", "state", "claimed", "expires", "status")


@admin.register(IdempotencyRecord)
class IdempotencyRecordAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not subscriptable at run time
    """The list shows neither keys nor bodies: a reader must not be able to replay the request of a user."""

    list_display = SHOWN
    list_display_links = None
    list_filter = ("state", "method")
    search_fields = ("route", "principal")
    ordering = ("-claimed_at",)
    fields = readonly_fields = SHOWN
    actions = ("release_keys",)
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest, **kwargs: Any) -> QuerySet[IdempotencyRecord]:
        found = IdempotencyRecord.rows.using(config().database).defer("answer", "phases")
        return found.order_by(*self.get_ordering(request))

    @admin.display(description=_("since"), ordering="claimed_at")
    def claimed(self, record: IdempotencyRecord) -> datetime:
        return datetime.fromtimestamp(record.claimed_at / 1_000_000, UTC)

    @admin.display(description=_("until"), ordering="expires_at")
    def expires(self, record: IdempotencyRecord) -> datetime:
        return datetime.fromtimestamp(record.expires_at / 1_000_000, UTC)

    @admin.action(description=_("Release the selected keys: their requests may run again"), permissions=["release"])
    def release_keys(self, request: HttpRequest, queryset: QuerySet[IdempotencyRecord]) -> None:
        """Release the selected keys, except those with an answer and those of running requests, which are not stuck."""
        table = table_in(config().database)
        freed = [record for record in queryset.exclude(state=COMPLETED) if table.free([record.scope])]
        for record in freed:
            self.log_change(request, record, f"Released, was {record.state}.")
        text = ngettext("%d key was released.", "%d keys were released.", len(freed)) % len(freed)
        self.message_user(request, text, messages.SUCCESS if freed else messages.WARNING)

    def has_release_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm("django_distlock.release_idempotencyrecord"))

    def _never(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_add_permission = has_change_permission = has_delete_permission = _never
