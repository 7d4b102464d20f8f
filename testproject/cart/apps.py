from __future__ import annotations

from django.apps import AppConfig


class CartConfig(AppConfig):
    name = "testproject.cart"
    label = "cart"
    default_auto_field = "django.db.models.BigAutoField"
