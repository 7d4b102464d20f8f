"""The lines of carts, and a ledger of what was asked of them."""

from __future__ import annotations

from django.conf import settings
from django.db import models

ITEMS = ("Teapot", "Kettle", "Cup")


class Line(models.Model):
    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    item = models.CharField(max_length=20)
    quantity = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("pk",)
        constraints = (models.UniqueConstraint(fields=("user", "item"), name="cart_one_line_per_item"),)

    def __str__(self) -> str:
        return f"{self.quantity} x {self.item}"


class Entry(models.Model):
    """A request to change a cart, and how it was answered."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    at = models.DateTimeField(auto_now_add=True)
    tab = models.CharField(max_length=8)
    asked = models.CharField(max_length=40)
    fence = models.BigIntegerField(null=True)
    status = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.asked}: {self.status}"
