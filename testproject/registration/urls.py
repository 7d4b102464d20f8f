"""One address per way: the view that a URL resolves to decides how ATOMIC_REQUESTS treats it."""

from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("", views.home, name="home"),
    path("login/", views.log_in, name="log-in"),
    path("register/none/", views.register_none, name="register-none"),
    path("register/table/", views.register_table, name="register-table"),
    path("register/row/", views.register_row, name="register-row"),
    path("register/advisory/", views.register_advisory, name="register-advisory"),
    path("register/advisory-per-email/", views.register_per_email, name="register-advisory-per-email"),
]
