"""The page that shows what the last replay measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.shortcuts import render
from django.views.decorators.http import require_GET

from .models import SchedulerRun
from .plots import plots
from .ways import WAYS

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    run = SchedulerRun.objects.first()
    context = {"ways": WAYS, "run": run, "plots": plots(run.result) if run else ()}
    return render(request, "scheduler/home.html", context)
