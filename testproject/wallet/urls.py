"""The way is part of the address."""

from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("", views.home, name="wallet"),
    path("balance/", views.balance, name="wallet-balance"),
    path("withdraw/<slug:slug>/", views.withdraw, name="wallet-withdraw"),
    path("transfer/<slug:slug>/", views.transfer, name="wallet-transfer"),
]
