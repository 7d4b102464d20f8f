"""What several tabs and people change at once: a board with pieces, and carts, which are what their ledger says."""

from __future__ import annotations

from django.db import models

COLUMNS, ROWS = 8, 5
# name, sign, column, row
START = (("Tower", "♜", 1, 1), ("Knight", "♞", 3, 2), ("Queen", "♛", 5, 3), ("Bishop", "♝", 6, 5), ("Pawn", "♟", 8, 4))
ITEMS = ("Teapot", "Kettle", "Cup")


class Piece(models.Model):
    name = models.CharField(max_length=20, unique=True)
    sign = models.CharField(max_length=2)
    column = models.PositiveSmallIntegerField()
    row = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return self.name


class LedgerEntry(models.Model):
    """What a user wants of a cart or the board, and how it was answered. The fence says in which order tabs or hands
    had the lock."""

    at = models.DateTimeField(auto_now_add=True)
    by = models.CharField(max_length=150)
    tab = models.CharField(max_length=8)
    asked = models.CharField(max_length=40)
    fence = models.BigIntegerField(null=True)
    status = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.asked}: {self.status}"


def pieces() -> models.QuerySet[Piece]:
    """The pieces of the board, which are put there when somebody looks for the first time."""
    if not Piece.objects.exists():
        made = [Piece(name=name, sign=sign, column=column, row=row) for name, sign, column, row in START]
        Piece.objects.bulk_create(made, ignore_conflicts=True)
    return Piece.objects.all()
