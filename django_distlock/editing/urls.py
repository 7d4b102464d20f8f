"""``path("distlock/editing/", include("django_distlock.editing.urls"))``: what the script asks."""

from __future__ import annotations

from django.urls import path

from .http.endpoints import beat_view, release_view

app_name = "distlock_editing"
urlpatterns = [
    path("beat/", beat_view, name="beat"),
    path("release/", release_view, name="release"),
]
