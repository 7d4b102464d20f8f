"""Withdraw and transfer by any way, a look at a balance, and the page that shows what the last replay measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.db.transaction import non_atomic_requests
from django.http import Http404
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from testproject.registration.answers import as_json, wants_json

from .forms import BalanceForm, TransferForm, WithdrawForm
from .messages import DELIVERIES
from .models import Account, ConsumerRun, ReplayRun
from .moves import Bank
from .plots import plots
from .ways import WAYS, Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from django import forms
    from django.http import HttpRequest, HttpResponse

form_methods = require_http_methods(["GET", "HEAD", "POST"])


# Each way opens its transaction itself: LOCK TABLES has to come before its own, and an advisory lock goes after it.
@non_atomic_requests
@form_methods
def withdraw(request: HttpRequest, slug: str) -> HttpResponse:
    def move(bank: Bank, given: dict[str, Any]) -> bool:
        return bank.withdraw(given["account"], given["amount"])

    return movement(request, "Withdraw", slug, WithdrawForm, move)


@non_atomic_requests
@form_methods
def transfer(request: HttpRequest, slug: str) -> HttpResponse:
    def move(bank: Bank, given: dict[str, Any]) -> bool:
        return bank.transfer(given["account"], given["target"], given["amount"])

    return movement(request, "Transfer", slug, TransferForm, move)


def movement(
    request: HttpRequest,
    verb: str,
    slug: str,
    form_class: type[forms.Form],
    move: Callable[[Bank, dict[str, Any]], bool],
) -> HttpResponse:
    """The form, or what came of it: 200 done, 409 refused for lack of funds, 400 a bad form, 404 no such account."""
    way = way_named(slug)
    form = form_class(request.POST if request.method == "POST" else None)
    if not form.is_valid():
        return form_page(request, f"{verb}: {way.title}", verb, form, way)
    try:
        done = move(Bank(way.slug), form.cleaned_data)
    except Account.DoesNotExist as error:
        raise Http404(str(error)) from error
    if wants_json(request):
        return as_json(200) if done else as_json(409, error="funds")
    if done:
        messages.success(request, f"{verb}: done.")
        return redirect(request.path)
    form.add_error("amount", "There is not enough money on the account.")
    return form_page(request, f"{verb}: {way.title}", verb, form, way, status=409)


@non_atomic_requests
@form_methods
def balance(request: HttpRequest) -> HttpResponse:
    """Reads only: how long that takes meanwhile shows what each lock does to those who merely read."""
    form = BalanceForm(request.POST if request.method == "POST" else None)
    if not form.is_valid():
        return form_page(request, "Balance", "Look up", form)
    account = get_object_or_404(Account, pk=form.cleaned_data["account"])
    if wants_json(request):
        return as_json(200, balance=account.balance)
    messages.success(request, f"{account.owner} has {account.balance}.")
    return redirect(request.path)


def form_page(
    request: HttpRequest, title: str, action: str, form: forms.Form, way: Way | None = None, status: int | None = None
) -> HttpResponse:
    status = status or (400 if request.method == "POST" else 200)
    if wants_json(request) and status == 400:
        return as_json(400, errors=form.errors)
    context = {"title": title, "action": action, "form": form, "way": way}
    return render(request, "wallet/movement.html", context, status=status)


def way_named(slug: str) -> Way:
    for way in WAYS:
        if way.slug == slug:
            return way
    raise Http404(f"There is no way {slug!r}.")


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    run = ReplayRun.objects.first()
    context = {
        "ways": WAYS,
        "run": run,
        "plots": plots(run.result) if run else (),
        "deliveries": DELIVERIES,
        "consumer_run": ConsumerRun.objects.first(),
    }
    return render(request, "wallet/home.html", context)
