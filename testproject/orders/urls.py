"""One address per way: the view that a URL resolves to decides what happens to its keys."""

from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("", views.home, name="orders"),
    path("<int:pk>/", views.order, name="order"),
    *(path(f"{way.slug}/", way.run, name=f"order-{way.slug}") for way in views.WAYS),
    path("none/api/", views.api_none, name="order-api-none"),
    path("key/api/", views.api_key, name="order-api-key"),
    path("atomic/api/", views.api_atomic, name="order-api-atomic"),
]
