from __future__ import annotations

from django.contrib import admin

from .models import Run


@admin.register(Run)
class RunAdmin(admin.ModelAdmin):
    """Measurements: to be read and deleted, not written by hand."""

    list_display = ("created", "scene", "engine")
    list_filter = ("scene", "engine")

    def has_add_permission(self, request) -> bool:
        return False

    def has_change_permission(self, request, obj=None) -> bool:
        return False
