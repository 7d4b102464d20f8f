from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("", views.home, name="board"),
    path("state/", views.state, name="board-state"),
    path("<int:pk>/move/", views.move, name="board-move"),
]
