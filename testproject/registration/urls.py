"""One address per way: the view that a URL resolves to decides how ATOMIC_REQUESTS treats it."""

from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("", views.home, name="home"),
    path("login/", views.log_in, name="log-in"),
    *(path(f"register/{way.slug}/", way.run, {"way": way}, name=f"register-{way.slug}") for way in views.WAYS),
]
