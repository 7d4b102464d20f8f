from __future__ import annotations

from django.contrib import admin

from .models import Run


@admin.register(Run)
class RunAdmin(admin.ModelAdmin):
    list_display = ("created", "scene", "engine")
    list_filter = ("scene", "engine")
