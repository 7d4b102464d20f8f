"""What the replays measured."""

from __future__ import annotations

from django.db import models


class Replay(models.Model):
    """One replay of a scene; `result` is what testproject.replay.scene.replay made of it."""

    scene = models.CharField(max_length=20)
    created = models.DateTimeField(auto_now_add=True)
    result = models.JSONField()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.scene}, {self.created:%Y-%m-%d %H:%M}"
