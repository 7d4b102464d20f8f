from __future__ import annotations

from django.contrib import admin

from .models import Account, ReplayRun


@admin.register(Account)
class AccountAdmin(admin.ModelAdmin):
    list_display = ("email", "created")
    search_fields = ("email",)
    readonly_fields = ("password", "created")


@admin.register(ReplayRun)
class ReplayRunAdmin(admin.ModelAdmin):
    """Measurements: to be read and deleted, not written by hand."""

    list_display = ("created", "engine", "atomic_requests")
    list_filter = ("engine", "atomic_requests")

    def has_add_permission(self, request) -> bool:
        return False

    def has_change_permission(self, request, obj=None) -> bool:
        return False
