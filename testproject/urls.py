"""The demo's pages at the root, the admin beside them. Each way of a scene has an address of its own: the view that a
URL resolves to decides how ATOMIC_REQUESTS treats it, and what happens to its keys."""

from __future__ import annotations

from django.apps import apps
from django.contrib import admin
from django.urls import include, path

from testproject.people import become
from testproject.registration import views as registration
from testproject.replay.views import latest, page


def wallet(request):
    return page(request, "wallet", "scenes/wallet.html", consumer=latest("consumer"))


urlpatterns = [
    path("admin/", admin.site.urls),
    path("be/<slug:slug>/", become, name="be"),
    path("wallet/", wallet, name="wallet"),
    path("inventory/", page, {"scene": "inventory", "template": "scenes/inventory.html"}, name="inventory"),
    path("scheduler/", page, {"scene": "scheduler", "template": "scenes/scheduler.html"}, name="scheduler"),
    path("", page, {"scene": "registration", "template": "registration/home.html"}, name="home"),
    path("login/", registration.log_in, name="log-in"),
    *(path(f"register/{way.slug}/", way.run, {"way": way}, name=f"register-{way.slug}") for way in registration.WAYS),
]
if apps.is_installed("testproject.orders"):
    from testproject.orders import views as orders

    urlpatterns += [
        path("orders/", orders.home, name="orders"),
        path("orders/<int:pk>/", orders.order, name="order"),
        *(path(f"orders/{way.slug}/", way.run, name=f"order-{way.slug}") for way in orders.WAYS),
        path("orders/none/api/", orders.api_none, name="order-api-none"),
        path("orders/key/api/", orders.api_key, name="order-api-key"),
        path("orders/atomic/api/", orders.api_atomic, name="order-api-atomic"),
    ]
if apps.is_installed("testproject.articles"):
    from testproject.articles import views as articles

    urlpatterns += [
        path("articles/", articles.ArticleList.as_view(), name="articles"),
        path("articles/<int:pk>/plain/", articles.PlainEdit.as_view(), name="articles-plain"),
        path("articles/<int:pk>/", articles.LockedEdit.as_view(), name="articles-edit"),
    ]
if apps.is_installed("testproject.tabs"):
    from testproject.tabs import views as tabs

    urlpatterns += [
        path("distlock/", include("django_distlock.browser.urls")),
        path("cart/", tabs.cart, name="cart"),
        path("cart/state/", tabs.cart_state, name="cart-state"),
        path("cart/change/", tabs.cart_change, name="cart-change"),
        path("board/", tabs.board, name="board"),
        path("board/state/", tabs.board_state, name="board-state"),
        path("board/<int:pk>/move/", tabs.board_move, name="board-move"),
        path("workers/", tabs.workers, name="workers"),
    ]
