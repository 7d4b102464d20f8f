from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("", views.ArticleList.as_view(), name="articles"),
    path("<int:pk>/plain/", views.PlainEdit.as_view(), name="articles-plain"),
    path("<int:pk>/", views.LockedEdit.as_view(), name="articles-edit"),
]
