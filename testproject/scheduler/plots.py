"""Bar charts of a replay, in the geometry of the registration app."""

from __future__ import annotations

from typing import Any

from testproject.registration.plots import ROW, Bar, Plot, scale_to


def plots(result: dict[str, Any]) -> list[Plot]:
    """Jobs per slot, and the time without a leader, for Replay.as_json()."""
    ways = result["ways"]
    led = [way for way in ways if way["takeover"] is not None]
    jobs, takeover = scale_to(way["jobs"] for way in ways), scale_to(way["takeover"] for way in led)
    return [
        Plot(
            "jobs",
            "Jobs that were run",
            [
                Bar(way["title"], jobs_figure(way), ROW * row, way["jobs"] * jobs, alarm=way["twice"] > 0)
                for row, way in enumerate(ways)
            ],
        ),
        Plot(
            "takeover",
            "Seconds from the kill of the leader to the next one",
            [
                Bar(way["title"], f"{way['takeover']:.2f}", ROW * row, way["takeover"] * takeover)
                for row, way in enumerate(led)
            ],
        ),
    ]


def jobs_figure(way: dict[str, Any]) -> str:
    return f"{way['jobs']} for {way['slots']}" + (f", {way['twice']} twice" if way["twice"] else "")
