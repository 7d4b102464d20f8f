"""An order by any way, as a form and as an API, and the page that shows what came of it."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib import messages
from django.db.models import Count, Max
from django.db.transaction import non_atomic_requests
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from django_distlock.idempotency import idempotency_exempt, idempotent
from testproject.registration.answers import as_json
from testproject.replay.views import page

from .forms import OrderForm
from .models import Order
from .payments import pay
from .scene import ATOMIC, IDEMPOTENT, NONE, WAYS, Way

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

form_methods = require_http_methods(["GET", "HEAD", "POST"])
LATEST = 10


def place(request: HttpRequest, way: Way, given: dict[str, Any]) -> Order:
    """The same request pays under the same key, also when it runs again after a crash."""
    payment = pay(request.idempotency.derive("payment"))
    return Order.objects.create(way=way.slug, payment=payment, **given)


def order_page(request: HttpRequest, way: Way) -> HttpResponse:
    form = OrderForm(request.POST if request.method == "POST" else None)
    if not form.is_valid():
        status = 400 if form.is_bound else 200
        context = {"way": way, "form": form, "seconds": settings.PAYMENT_SECONDS}
        return render(request, "orders/order_form.html", context, status=status)
    made = place(request, way, form.cleaned_data)
    messages.success(request, f"Thank you. Order {made.pk} was placed: {made}.")
    return redirect("order", made.pk)


def order_api(request: HttpRequest, way: Way) -> HttpResponse:
    """JSON with `item`, `quantity` and perhaps `note`: 201 and the order's address, or 400."""
    try:
        sent = json.loads(request.body)
    except ValueError:
        return as_json(400, error="not JSON")
    form = OrderForm({"sheet": uuid.uuid4(), **sent} if isinstance(sent, dict) else {})
    if not form.is_valid():
        return as_json(400, errors=form.errors)
    made = place(request, way, form.cleaned_data)
    answer = as_json(201, order=made.pk, payment=made.payment)
    answer["Location"] = reverse("order", args=[made.pk])
    return answer


# Without ATOMIC_REQUESTS, but for the way that is one transaction: a payment cannot be rolled back, and a transaction
# that is open meanwhile keeps its locks (on SQLite the only one there is).
@idempotency_exempt
@non_atomic_requests
@form_methods
def order_none(request: HttpRequest) -> HttpResponse:
    return order_page(request, NONE)


@idempotent(required=True)
@non_atomic_requests
@form_methods
def order_idempotent(request: HttpRequest) -> HttpResponse:
    return order_page(request, IDEMPOTENT)


@idempotent(required=True, atomic=True)
@form_methods
def order_atomic(request: HttpRequest) -> HttpResponse:
    return order_page(request, ATOMIC)


@idempotency_exempt
@non_atomic_requests
@csrf_exempt
@require_POST
def api_none(request: HttpRequest) -> HttpResponse:
    return order_api(request, NONE)


# anonymous: this API knows nobody. One that has credentials needs no such permission: their keys are apart.
@idempotent(required=True, anonymous=True)
@non_atomic_requests
@csrf_exempt
@require_POST
def api_idempotent(request: HttpRequest) -> HttpResponse:
    return order_api(request, IDEMPOTENT)


@idempotent(required=True, anonymous=True, atomic=True)
@csrf_exempt
@require_POST
def api_atomic(request: HttpRequest) -> HttpResponse:
    return order_api(request, ATOMIC)


@require_GET
def order(request: HttpRequest, pk: int) -> HttpResponse:
    """What the redirect leads to: the order, and how many of them its form has made."""
    made = get_object_or_404(Order, pk=pk)
    way = next((way for way in WAYS if way.slug == made.way), None)
    return render(request, "orders/order.html", {"order": made, "way": way, "twins": made.twins()})


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    titles = {way.slug: way.title for way in WAYS}
    sheets = Order.objects.values(*Order.SAME).annotate(made=Count("pk"), last=Max("pk")).order_by("-last")
    shown = [{**sheet, "title": titles.get(sheet["way"], sheet["way"])} for sheet in sheets[:LATEST]]
    return page(request, "orders", "orders/home.html", sheets=shown, seconds=settings.PAYMENT_SECONDS)
