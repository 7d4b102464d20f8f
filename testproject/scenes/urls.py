from __future__ import annotations

from django.urls import path

from testproject.replay.views import latest, page


def wallet(request):
    return page(request, "wallet", "scenes/wallet.html", consumer=latest("consumer"))


urlpatterns = [
    path("wallet/", wallet, name="wallet"),
    path("inventory/", page, {"scene": "inventory", "template": "scenes/inventory.html"}, name="inventory"),
    path("scheduler/", page, {"scene": "scheduler", "template": "scenes/scheduler.html"}, name="scheduler"),
]
