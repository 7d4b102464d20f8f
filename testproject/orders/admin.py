from __future__ import annotations

from django.contrib import admin

from django_distlock.idempotency import IdempotentAdmin

from .models import Order


@admin.register(Order)
class OrderAdmin(IdempotentAdmin, admin.ModelAdmin):
    list_display = ("pk", "way", "item", "quantity", "payment", "created")
    list_filter = ("way",)
