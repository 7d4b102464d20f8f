from __future__ import annotations

from django.apps import AppConfig


class ArticlesConfig(AppConfig):
    name = "testproject.articles"
    label = "articles"
    default_auto_field = "django.db.models.BigAutoField"
