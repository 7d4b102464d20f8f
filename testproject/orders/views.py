"""An order by any way, as a form and as an API, and the page that shows what came of it."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.db.models import Count, Max
from django.db.transaction import non_atomic_requests
from django.http import JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from django_distlock.idempotency import idempotency_exempt, idempotent
from testproject.replay.scene import Way, way
from testproject.replay.views import page

from .models import Order, pay

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest, HttpResponse

form_methods = require_http_methods(["GET", "HEAD", "POST"])
LATEST = 10
ITEMS = ("teapot", "kettle", "cup")


class OrderForm(forms.Form):
    item = forms.ChoiceField(choices=[(item, item.title()) for item in ITEMS])
    quantity = forms.IntegerField(min_value=1, max_value=12, initial=1)
    note = forms.CharField(max_length=200, required=False, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    sheet = forms.UUIDField(initial=uuid.uuid4, widget=forms.HiddenInput)


def place(request: HttpRequest, way: Way, given: dict[str, Any]) -> Order:
    """The same request pays under the same key, also when it runs again after a crash."""
    payment = pay(request.idempotency.derive("payment"))
    return Order.objects.create(way=way.slug, payment=payment, **given)


def order_page(request: HttpRequest, way: Way) -> HttpResponse:
    form = OrderForm(request.POST if request.method == "POST" else None)
    if not form.is_valid():
        context = {"way": way, "form": form, "seconds": settings.PAYMENT_SECONDS}
        return render(request, "orders/order_form.html", context, status=400 if form.is_bound else 200)
    made = place(request, way, form.cleaned_data)
    messages.success(request, f"Thank you. Order {made.pk} was placed: {made}.")
    return redirect("order", made.pk)


def order_api(way: Way) -> Callable[[HttpRequest], HttpResponse]:
    """Take JSON with `item`, `quantity` and perhaps `note`: 201 and the order's address, or 400."""

    @csrf_exempt
    @require_POST
    def view(request: HttpRequest) -> HttpResponse:
        try:
            form = OrderForm({"sheet": uuid.uuid4(), **json.loads(request.body)})
        except (ValueError, TypeError):
            return JsonResponse({"error": "not a JSON object"}, status=400)
        if not form.is_valid():
            return JsonResponse({"errors": form.errors}, status=400)
        made = place(request, way, form.cleaned_data)
        address = reverse("order", args=[made.pk])
        return JsonResponse({"order": made.pk, "payment": made.payment}, status=201, headers={"Location": address})

    return view


# Without ATOMIC_REQUESTS, but for the way that is one transaction: a payment cannot be rolled back, and a transaction
# that is open meanwhile keeps its locks (on SQLite the only one there is).
@way("No key", prevents=False)
@idempotency_exempt
@non_atomic_requests
@form_methods
def none(request: HttpRequest) -> HttpResponse:
    """Pay, insert, redirect. Each click is a request of its own, and the server takes each for another order."""
    return order_page(request, none)


@way("Idempotency key", "{% idempotency_key %} and @idempotent")
@idempotent(required=True)
@non_atomic_requests
@form_methods
def key(request: HttpRequest) -> HttpResponse:
    """The form brings a key. The first request claims it and runs; the others wait for its answer and get the same one.
    The claim is a row of its own, so nothing is locked while the payment is under way."""
    return order_page(request, key)


@way("Exactly once", "{% idempotency_key %} and @idempotent(atomic=True)")
@idempotent(required=True, atomic=True)
@form_methods
def atomic(request: HttpRequest) -> HttpResponse:
    """Key, order and answer are one transaction: a server that is killed leaves all three or none. The transaction is
    open while the payment is under way."""
    return order_page(request, atomic)


WAYS = (none, key, atomic)


api_none = idempotency_exempt(non_atomic_requests(order_api(none)))
# anonymous: this API knows nobody. One that has credentials needs no such permission: their keys are apart.
api_key = idempotent(required=True, anonymous=True)(non_atomic_requests(order_api(key)))
api_atomic = idempotent(required=True, anonymous=True, atomic=True)(order_api(atomic))


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
