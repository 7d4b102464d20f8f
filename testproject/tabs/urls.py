from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("cart/", views.cart, name="cart"),
    path("cart/state/", views.cart_state, name="cart-state"),
    path("cart/change/", views.cart_change, name="cart-change"),
    path("board/", views.board, name="board"),
    path("board/state/", views.board_state, name="board-state"),
    path("board/<int:pk>/move/", views.board_move, name="board-move"),
    path("workers/", views.workers, name="workers"),
]
