"""Figures with their spread, and ratios that are taken round by round.

Two entries that are measured one after the other in one round meet the same disturbances. Their ratio in that round
therefore says something on a busy machine too, which the ratio of two medians over the whole run does not.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Spread:
    """The median over the rounds, and the quartiles around it."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Summarise one figure of every round; StatisticsError, a ValueError, if there is none."""
    median = statistics.median(values)
    if len(values) < 2:
        return Spread(median, median, median)
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def paired(values: Sequence[float], others: Sequence[float]) -> Spread:
    """Divide two figures of the same round, for every round that has both, and summarise the ratios."""
    return spread([value / other for value, other in zip(values, others, strict=False) if other])
