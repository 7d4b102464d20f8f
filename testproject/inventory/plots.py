"""Bar charts of a replay, in the geometry of the registration app."""

from __future__ import annotations

from typing import Any

from testproject.registration.plots import ROW, Bar, Plot, scale_to


def plots(result: dict[str, Any]) -> list[Plot]:
    """Units sold, and sales per second, for Replay.as_json()."""
    ways = result["ways"]
    sold, speed = scale_to(way["sold"] for way in ways), scale_to(way["per_second"] for way in ways)
    return [
        Plot(
            "sold",
            f"Units sold of a stock of {ways[0]['stock']}",
            [
                Bar(way["title"], sold_figure(way), ROW * row, way["sold"] * sold, alarm=way["oversold"] > 0)
                for row, way in enumerate(ways)
            ],
        ),
        Plot(
            "speed",
            "Sales per second, the time of a sleeping worker included",
            [
                Bar(way["title"], f"{way['per_second']:.0f}", ROW * row, way["per_second"] * speed)
                for row, way in enumerate(ways)
            ],
        ),
    ]


def sold_figure(way: dict[str, Any]) -> str:
    return f"{way['sold']}" + (f" ({way['oversold']} too many)" if way["oversold"] else "")
