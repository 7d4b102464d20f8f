"""A cart that one tab at a time may change: the page, what is in it, and the view that the lock protects."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from django.db.models import F
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from django_distlock.browser import requires_lock
from testproject.headers import strict
from testproject.people import PEOPLE

from .models import ITEMS, Entry, Line

if TYPE_CHECKING:
    from collections.abc import Callable

SHOWN = 8  # entries of the ledger


@strict
@never_cache
@require_GET
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "cart/home.html", {"people": PEOPLE, "items": ITEMS})


@never_cache
@require_GET
def state(request: HttpRequest) -> HttpResponse:
    """What is in the cart, and the newest entries of its ledger."""
    if not request.user.is_authenticated:
        return JsonResponse({"reason": "logged_out"}, status=401)
    lines = {line.item: line.quantity for line in Line.objects.filter(user=request.user)}
    entries = Entry.objects.filter(user=request.user)[:SHOWN]
    return JsonResponse(
        {
            "lines": {item: lines.get(item, 0) for item in ITEMS},
            "ledger": [
                {
                    "at": f"{entry.at:%H:%M:%S}",
                    "tab": entry.tab,
                    "asked": entry.asked,
                    "fence": entry.fence,
                    "status": entry.status,
                }
                for entry in entries
            ],
        }
    )


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
def change(request: HttpRequest) -> HttpResponse:
    """Put one more of an item into the cart. 423 unless the tab has the lock of this cart now."""
    item = request.POST.get("item")
    if item not in ITEMS:
        return HttpResponse(status=400)
    Line.objects.get_or_create(user=request.user, item=item)
    Line.objects.filter(user=request.user, item=item).update(quantity=F("quantity") + 1)
    return HttpResponse(status=204)
