"""An article that two people want to edit, with its sources."""

from __future__ import annotations

from django.db import models


class Article(models.Model):
    title = models.CharField(max_length=100)
    body = models.TextField()
    section = models.CharField(
        max_length=10, choices=[("news", "News"), ("sport", "Sport"), ("culture", "Culture")], default="news"
    )
    published = models.BooleanField(default=False)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.title


class Source(models.Model):
    article = models.ForeignKey(Article, on_delete=models.CASCADE, related_name="sources")
    name = models.CharField(max_length=100)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.name
