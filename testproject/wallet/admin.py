from __future__ import annotations

from django.contrib import admin

from testproject.registration.admin import ReplayRunAdmin

from .models import Account, ConsumerRun, ReplayRun


@admin.register(Account)
class AccountAdmin(admin.ModelAdmin):
    list_display = ("pk", "owner", "balance")
    search_fields = ("owner",)


@admin.register(ReplayRun, ConsumerRun)
class WalletRunAdmin(ReplayRunAdmin):
    list_display = ("created", "engine")
    list_filter = ("engine",)
