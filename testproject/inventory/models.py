"""The last items of a shop, their sales, and what the replays measured."""

from __future__ import annotations

from django.db import models

from django_distlock.data import FencedModel


class Item(FencedModel):
    """Something with a stock. No constraint keeps it from falling below zero, on purpose.

    Where `CHECK (stock >= 0)` or one conditional `UPDATE` does all of it, that is the right tool. Here a sale takes a
    while between look and write.
    """

    enforce_fence = True

    name = models.CharField(max_length=50)
    stock = models.IntegerField()

    def __str__(self) -> str:
        return f"{self.name}: {self.stock}"


class Sale(models.Model):
    """One unit that has left the house: it does not come back when somebody finds out that there was none."""

    item = models.ForeignKey(Item, models.CASCADE, related_name="sales")

    def __str__(self) -> str:
        return f"sale {self.pk}"


class InventoryRun(models.Model):
    """One replay; `result` is testproject.inventory.records.Replay as JSON."""

    created = models.DateTimeField(auto_now_add=True)
    engine = models.CharField(max_length=20)
    result = models.JSONField()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.engine}, {self.created:%Y-%m-%d %H:%M}"
