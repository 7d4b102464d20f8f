"""``path("distlock/", include("django_distlock.browser.urls"))``: what distlock.js asks."""

from __future__ import annotations

from django.urls import path

from .endpoints import csrf_view, leases_view, release_view, renew_view
from .events import events_view

app_name = "distlock_browser"
urlpatterns = [
    path("csrf/", csrf_view, name="csrf"),
    path("leases/", leases_view, name="leases"),
    path("leases/renew/", renew_view, name="renew"),
    path("leases/events/", events_view, name="events"),
    path("leases/<str:lease>/release/", release_view, name="release"),
]
