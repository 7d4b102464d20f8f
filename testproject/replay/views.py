"""The page of a scene: its story and ways, and the figures of its latest replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.shortcuts import render
from django.views.decorators.http import require_GET

from . import command_line
from .models import Replay
from .scene import scenes

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


@require_GET
def page(request: HttpRequest, scene: str, template: str, **context: Any) -> HttpResponse:
    return render(request, template, latest(scene) | context)


def latest(name: str) -> dict[str, Any]:
    """For the template replay/figures.html."""
    scene, run = scenes()[name], Replay.objects.filter(scene=name).first()
    found = {"ways": scene.ways, "run": run, "command": command_line(f"replay {name}")}
    if run is None:
        return found
    result, alarms = run.result, [False, *(column.alarm for column in scene.columns)]
    table = [[list(zip(row, alarms, strict=True)) for row in way] for way in scene.table(result)]
    plots = [scene.bars(key, title, result["ways"]) for key, title in scene.plots]
    return found | {"result": result, "plots": plots, "columns": scene.columns, "table": table}
