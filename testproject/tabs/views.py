"""Pages with locks of the browser: a cart that one tab at a time changes, a board with one hand at each piece, and
workers that count in one memory."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from django_distlock.browser import requires_lock
from django_distlock.leases import upkeep
from testproject.headers import ISOLATED, STRICT, with_headers
from testproject.people import PEOPLE

from .models import COLUMNS, ITEMS, ROWS, LedgerEntry, Piece, pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.models import QuerySet

SHOWN = 8  # entries of a list
BOARD = "board"  # for the ledger, in which a tab of a cart has three letters


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
    entries = LedgerEntry.objects.filter(by=request.user.username).exclude(tab=BOARD)
    put_in = Counter(entries.filter(status=204).values_list("asked", flat=True))
    return JsonResponse({"lines": {item: put_in[f"1 more {item}"] for item in ITEMS}, "ledger": ledger(entries)})


def ledger(entries: QuerySet[LedgerEntry]) -> list[dict[str, Any]]:
    shown = entries.values("at", "by", "tab", "asked", "fence", "status")[:SHOWN]
    return [{**entry, "at": f"{entry['at']:%H:%M:%S}", "by": PEOPLE.get(entry["by"], entry["by"])} for entry in shown]


def write_down(request: HttpRequest, tab: str, asked: str, status: int) -> HttpResponse:
    """Into the ledger; the answer to the request."""
    _, _, fence = request.headers.get("Distlock-Lease", "").partition(";")
    held = {"by": request.user.username, "fence": int(fence) if fence.isdecimal() else None}
    LedgerEntry.objects.create(tab=tab[:8], asked=asked[:40], status=status, **held)
    return HttpResponse(status=status)


def refusals_written_down(view: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    @functools.wraps(view)
    def answer(request: HttpRequest) -> HttpResponse:
        response = view(request)
        if response.status_code == 423 and request.user.is_authenticated:
            write_down(request, request.POST.get("tab", ""), f"1 more {request.POST.get('item', '')}", 423)
        return response

    return answer


@require_POST
@refusals_written_down
@requires_lock("cart:{request.user.pk}")
def cart_change(request: HttpRequest) -> HttpResponse:
    """Put one more of an item into the cart. 423 unless the tab has the lock of this cart now."""
    if request.POST.get("item") not in ITEMS:
        return HttpResponse(status=400)
    return write_down(request, request.POST.get("tab", ""), f"1 more {request.POST['item']}", 204)


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
    return JsonResponse({"pieces": found, "moves": ledger(LedgerEntry.objects.filter(tab=BOARD))})


@require_POST
@requires_lock("board:{pk}")
def board_move(request: HttpRequest, pk: int) -> HttpResponse:
    """Put a piece on another square. 423 unless the sender has it in hand now."""
    piece = get_object_or_404(Piece, pk=pk)
    try:
        piece.column, piece.row = int(request.POST["column"]), int(request.POST["row"])
    except (KeyError, ValueError):
        return HttpResponse(status=400)
    if not (1 <= piece.column <= COLUMNS and 1 <= piece.row <= ROWS):
        return HttpResponse(status=400)
    piece.save()
    return write_down(request, BOARD, f"{piece} to {'ABCDEFGH'[piece.column - 1]}{piece.row}", 204)


@with_headers(STRICT | ISOLATED)
@require_GET
def workers(request: HttpRequest) -> HttpResponse:
    """Eight workers, with the mutex and without it."""
    return render(request, "workers/home.html", {"hands": range(1, 9), "times": 20_000})
