"""One outcome, two forms: JSON for a program, a page for a person."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render

if TYPE_CHECKING:
    from django import forms

    from .models import Account
    from .scene import Way


def wants_json(request: HttpRequest) -> bool:
    return request.get_preferred_type(["text/html", "application/json"]) == "application/json"


def as_json(status: int, **facts: object) -> JsonResponse:
    # The process id shows a client of the demo that several server processes took part.
    return JsonResponse({**facts, "process": os.getpid()}, status=status)


def form_page(request: HttpRequest, way: Way, form: forms.Form, status: int = 200) -> HttpResponse:
    if wants_json(request) and status != 200:
        return as_json(status, errors=form.errors)
    return render(request, "registration/sign_up.html", {"way": way, "form": form}, status=status)


def registered(request: HttpRequest, way: Way, form: forms.Form, account: Account | None) -> HttpResponse:
    """201 and 409 for a program; for a person a redirect, or the form again with its error."""
    if wants_json(request):
        return as_json(409, error="taken") if account is None else as_json(201, account=account.pk)
    if account is None:
        form.add_error("email", "This address is already registered.")
        return form_page(request, way, form, status=409)
    messages.success(request, f"Account {account.pk} was made for {account.email}.")
    return redirect(way.url_name)
