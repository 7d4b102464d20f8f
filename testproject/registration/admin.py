from __future__ import annotations

from django.contrib import admin

from .models import Account


@admin.register(Account)
class AccountAdmin(admin.ModelAdmin):
    list_display = ("email", "created")
    search_fields = ("email",)
    readonly_fields = ("password", "created")
