"""Writes that carry a fencing token, so that the database refuses those of a holder that has lost its lock."""

from __future__ import annotations

from django.db import models


class FencedModel(models.Model):
    """A model whose rows remember the highest fencing token that has written them."""

    fence = models.BigIntegerField(default=0, editable=False)

    class Meta:
        abstract = True
