"""The demo's pages at the root, the admin beside them."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("wallet/", include("testproject.wallet.urls")),
    path("scheduler/", include("testproject.scheduler.urls")),
    path("inventory/", include("testproject.inventory.urls")),
    path("", include("testproject.registration.urls")),
]
if apps.is_installed("testproject.orders"):
    urlpatterns.insert(0, path("orders/", include("testproject.orders.urls")))
if apps.is_installed("testproject.articles"):
    urlpatterns.insert(0, path("articles/", include("testproject.articles.urls")))
    urlpatterns.insert(0, path("distlock/editing/", include("django_distlock.editing.urls")))
