"""The demo's pages at the root, the admin beside them."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.urls import include, path

from testproject.people import become

urlpatterns = [
    path("admin/", admin.site.urls),
    path("be/<slug:slug>/", become, name="be"),
    path("", include("testproject.scenes.urls")),
    path("", include("testproject.registration.urls")),
]
if apps.is_installed("testproject.orders"):
    urlpatterns.insert(0, path("orders/", include("testproject.orders.urls")))
if apps.is_installed("testproject.articles"):
    urlpatterns.insert(0, path("articles/", include("testproject.articles.urls")))
if apps.is_installed("testproject.tabs"):
    urlpatterns[:0] = [
        path("", include("testproject.tabs.urls")),
        path("distlock/", include("django_distlock.browser.urls")),
    ]
