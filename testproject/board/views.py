"""A board that several people use at once; each piece is in one hand at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from django_distlock.browser import requires_lock
from django_distlock.leases import upkeep
from testproject.headers import strict
from testproject.people import PEOPLE

from .models import COLUMNS, ROWS, Move, Piece, pieces

if TYPE_CHECKING:
    from django.http import HttpRequest

SHOWN = 6  # moves


@strict
@never_cache
@require_GET
def home(request: HttpRequest) -> HttpResponse:
    context = {
        "people": PEOPLE,
        "pieces": [(piece, f"board:{piece.pk}") for piece in pieces()],
        "columns": COLUMNS,
        "rows": ROWS,
    }
    return render(request, "board/home.html", context)


@never_cache
@require_GET
def state(request: HttpRequest) -> HttpResponse:
    """Where the pieces are, in whose hand, and the newest moves."""
    hands = {lease.name: lease.label for lease in upkeep.held("default", of_objects=False, limit=100)}
    return JsonResponse(
        {
            "pieces": [
                {"pk": piece.pk, "column": piece.column, "row": piece.row, "holder": hands.get(f"board:{piece.pk}")}
                for piece in pieces()
            ],
            "moves": [
                {
                    "at": f"{move.at:%H:%M:%S}",
                    "by": move.by,
                    "piece": str(move.piece),
                    "to": move.to,
                    "fence": move.fence,
                }
                for move in Move.objects.select_related("piece")[:SHOWN]
            ],
        }
    )


@require_POST
@requires_lock("board:{pk}")
def move(request: HttpRequest, pk: int) -> HttpResponse:
    """Put a piece on another square. 423 unless the sender has it in hand now."""
    piece = get_object_or_404(Piece, pk=pk)
    try:
        column, row = int(request.POST["column"]), int(request.POST["row"])
    except (KeyError, ValueError):
        return HttpResponse(status=400)
    if not (1 <= column <= COLUMNS and 1 <= row <= ROWS):
        return HttpResponse(status=400)
    piece.column, piece.row = column, row
    piece.save()
    lease = request.distlock_leases[f"board:{pk}"]  # type: ignore[attr-defined]  # set by requires_lock
    Move.objects.create(piece=piece, by=lease.label, to=f"{'ABCDEFGH'[column - 1]}{row}", fence=lease.fence)
    return HttpResponse(status=204)
