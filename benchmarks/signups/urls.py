"""One view, whose address says which way it takes; each server gets requests for one way only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_POST

from benchmarks.signups.ways import find
from testproject.registration.forms import SignUpForm

if TYPE_CHECKING:
    from django.http import HttpResponse


@require_POST
def sign_up(request: HttpRequest, slug: str) -> HttpResponse:
    """Register the address: 201, or 409 if it is taken."""
    form = SignUpForm(request.POST)
    if not form.is_valid():
        return JsonResponse(form.errors, status=400)
    account = find(slug).sign_up(form.sign_up())
    if account is None:
        return JsonResponse({"error": "taken"}, status=409)
    return JsonResponse({"account": account.pk}, status=201)


urlpatterns = [path("<slug:slug>/", sign_up)]
