"""Orders that somebody has paid for."""

from __future__ import annotations

import time

from django.conf import settings
from django.db import models


class Order(models.Model):
    """An order that has been paid.

    No constraint refuses a second one, and none could: the same customer may well want the same thing twice. Only the
    form knows that it was sent before. `sheet` is the number of the copy of the form that a person had before him, by
    which this demo counts what came of it; it protects nothing. `payment` is what the provider calls the payment.
    """

    SAME = ("way", "sheet", "item", "quantity", "note")

    way = models.CharField(max_length=20)
    item = models.CharField(max_length=20)
    quantity = models.PositiveSmallIntegerField()
    note = models.CharField(max_length=200, blank=True)
    sheet = models.UUIDField(db_index=True)
    payment = models.CharField(max_length=40)
    created = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.quantity} x {self.item}"

    def twins(self) -> models.QuerySet[Order]:
        """The orders of the same form with the same data, this one among them."""
        return Order.objects.filter(**{name: getattr(self, name) for name in self.SAME}).order_by("pk")


def pay(key: str) -> str:
    """The payment provider: somebody else's server, slow, and each call of it costs the customer money. As with a real
    provider, a call that is repeated with its key is the same payment."""
    time.sleep(settings.PAYMENT_SECONDS)
    return f"pay-{key[:12]}"
