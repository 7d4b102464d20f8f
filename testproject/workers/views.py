"""Eight workers count in one memory, with the mutex and without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.shortcuts import render
from django.views.decorators.http import require_GET

from testproject.headers import isolated, strict

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


@strict
@isolated
@require_GET
def home(request: HttpRequest) -> HttpResponse:
    return render(request, "workers/home.html", {"hands": range(1, 9), "times": 20_000})
