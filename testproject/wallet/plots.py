"""Bar charts of a wallet replay, in the geometry of the registration's."""

from __future__ import annotations

from typing import Any

from testproject.registration.plots import ROW, Bar, Plot, scale_to


def plots(result: dict[str, Any]) -> list[Plot]:
    """Pairs of withdrawals that were both paid out, and transfers per second, for Replay.as_json()."""
    ways = result["ways"]
    spent = scale_to(way["pairs"]["both"] for way in ways)
    speed = scale_to(way["transfers"]["per_second"] for way in ways)
    return [
        Plot(
            "double-spending",
            f"Accounts overdrawn by {ways[0]['pairs']['count']} pairs of withdrawals",
            [
                Bar(
                    way["title"],
                    str(way["pairs"]["both"]),
                    ROW * row,
                    way["pairs"]["both"] * spent,
                    alarm=way["pairs"]["both"] > 0,
                )
                for row, way in enumerate(ways)
            ],
        ),
        Plot(
            "transfers",
            "Transfers per second, and the money made or lost by them",
            [
                Bar(
                    way["title"],
                    transfers_figure(way["transfers"]),
                    ROW * row,
                    way["transfers"]["per_second"] * speed,
                    alarm=way["transfers"]["drift"] != 0,
                )
                for row, way in enumerate(ways)
            ],
        ),
    ]


def transfers_figure(transfers: dict[str, Any]) -> str:
    drift = f" ({transfers['drift']:+})" if transfers["drift"] else ""
    return f"{transfers['per_second']:.0f}{drift}"
