from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("", views.home, name="cart"),
    path("state/", views.state, name="cart-state"),
    path("change/", views.change, name="cart-change"),
]
