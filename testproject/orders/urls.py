"""One address per way: the view that a URL resolves to decides what happens to its keys."""

from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("", views.home, name="orders"),
    path("<int:pk>/", views.order, name="order"),
    path("none/", views.order_none, name="order-none"),
    path("none/api/", views.api_none, name="order-api-none"),
    path("idempotent/", views.order_idempotent, name="order-idempotent"),
    path("idempotent/api/", views.api_idempotent, name="order-api-idempotent"),
    path("atomic/", views.order_atomic, name="order-atomic"),
    path("atomic/api/", views.api_atomic, name="order-api-atomic"),
]
