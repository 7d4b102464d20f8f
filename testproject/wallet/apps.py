from __future__ import annotations

from django.apps import AppConfig


class WalletConfig(AppConfig):
    name = "testproject.wallet"
    label = "wallet"
    default_auto_field = "django.db.models.BigAutoField"
