"""Pages with locks of the browser: a cart that one tab at a time changes, a board with one hand at each piece, and
workers that count in one memory."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from django_distlock.browser import requires_lock
from django_distlock.leases import upkeep
from testproject.headers import ISOLATED, STRICT, with_headers
from testproject.people import PEOPLE

from .models import COLUMNS, ITEMS, ROWS, Entry, Line, Move, Piece, pieces

if TYPE_CHECKING:
    from collections.abc import Callable

SHOWN = 8  # entries of a list


@with_headers(STRICT)
@never_cache
@require_GET
def cart(request: HttpRequest) -> HttpResponse:
    return render(request, "cart/home.html", {"people": PEOPLE, "items": ITEMS})


@never_cache
@require_GET
def cart_state(request: HttpRequest) -> HttpResponse:
    """What is in the cart, and the newest entries of its ledger."""
    if not request.user.is_authenticated:
        return JsonResponse({"reason": "logged_out"}, status=401)
    lines = {line.item: line.quantity for line in Line.objects.filter(user=request.user)}
    ledger = [
        {"at": f"{at:%H:%M:%S}", "tab": tab, "asked": asked, "fence": fence, "status": status}
        for at, tab, asked, fence, status in Entry.objects.filter(user=request.user).values_list(
            "at", "tab", "asked", "fence", "status"
        )[:SHOWN]
    ]
    return JsonResponse({"lines": {item: lines.get(item, 0) for item in ITEMS}, "ledger": ledger})


def in_the_ledger(view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Write down how a request was answered, also one that the lock refuses."""

    @functools.wraps(view)
    def answer(request: HttpRequest) -> HttpResponse:
        response = view(request)
        if request.user.is_authenticated:
            _, _, fence = request.headers.get("Distlock-Lease", "").partition(";")
            Entry.objects.create(
                user=request.user,
                tab=request.POST.get("tab", "")[:8],
                asked=f"1 more {request.POST.get('item', '')}"[:40],
                fence=int(fence) if fence.isdecimal() else None,
                status=response.status_code,
            )
        return response

    return answer


@require_POST
@in_the_ledger
@requires_lock("cart:{request.user.pk}")
def cart_change(request: HttpRequest) -> HttpResponse:
    """Put one more of an item into the cart. 423 unless the tab has the lock of this cart now."""
    item = request.POST.get("item")
    if item not in ITEMS:
        return HttpResponse(status=400)
    Line.objects.get_or_create(user=request.user, item=item)
    Line.objects.filter(user=request.user, item=item).update(quantity=F("quantity") + 1)
    return HttpResponse(status=204)


@with_headers(STRICT)
@never_cache
@require_GET
def board(request: HttpRequest) -> HttpResponse:
    shown = [(piece, f"board:{piece.pk}") for piece in pieces()]
    return render(request, "board/home.html", {"people": PEOPLE, "pieces": shown, "columns": COLUMNS, "rows": ROWS})


@never_cache
@require_GET
def board_state(request: HttpRequest) -> HttpResponse:
    """Where the pieces are, in whose hand, and the newest moves."""
    hands = {lease.name: lease.label for lease in upkeep.held("default", of_objects=False, limit=100)}
    found = [
        {"pk": piece.pk, "column": piece.column, "row": piece.row, "holder": hands.get(f"board:{piece.pk}")}
        for piece in pieces()
    ]
    moves = [
        {"at": f"{move.at:%H:%M:%S}", "by": move.by, "piece": str(move.piece), "to": move.to, "fence": move.fence}
        for move in Move.objects.select_related("piece")[:SHOWN]
    ]
    return JsonResponse({"pieces": found, "moves": moves})


@require_POST
@requires_lock("board:{pk}")
def board_move(request: HttpRequest, pk: int) -> HttpResponse:
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


@with_headers(STRICT | ISOLATED)
@require_GET
def workers(request: HttpRequest) -> HttpResponse:
    """Eight workers, with the mutex and without it."""
    return render(request, "workers/home.html", {"hands": range(1, 9), "times": 20_000})
