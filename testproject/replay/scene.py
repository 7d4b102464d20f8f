"""What a scene is: a fault, the ways to prevent it, how they are acted out, and how that is judged and shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.conf import settings
from django.db import connection
from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

Figures = dict[str, Any]  # what was measured, as it becomes JSON
ROUNDS = 5  # tries to make a fault show itself
WIDTH, ROW, FIGURE = 340, 46, 125  # of a plot, of one of its bars, and the room right of the longest one


@dataclass(frozen=True, slots=True)
class Way:
    """`slug` names it in commands and addresses, `code` is what makes it; `prevents`: is the fault ruled out?"""

    slug: str
    title: str
    code: str
    summary: str
    prevents: bool


class Option(NamedTuple):
    """Of the scene's command; a number is at least `least`."""

    name: str
    default: Any
    help: str
    least: float = 1


class Column(NamedTuple):
    """Of the table; `alarm`: anything but 0 is what should not happen."""

    head: str
    cell: Callable[[Figures], object] | str
    alarm: bool = False

    def text(self, row: Figures) -> str:
        return str(row[self.cell] if isinstance(self.cell, str) else self.cell(row))


class Bars(NamedTuple):
    """A plot with one bar per way: how long it is, the figure behind it, and a thin line to `reach` if there is one."""

    title: str  # formatted with the figures of the first way
    value: Callable[[Figures], float | None]
    figure: Callable[[Figures], str]
    alarm: Callable[[Figures], object] = lambda way: False
    reach: Callable[[Figures], float] | None = None

    def plot(self, number: int, ways: Sequence[Figures]) -> Figures:
        """Geometry for the template, in the SVG's own units."""
        shown = [way for way in ways if self.value(way) is not None]
        longest = self.reach or self.value
        scale = (WIDTH - FIGURE) / max([longest(way) or 0 for way in shown] + [1])
        bars = []
        for row, way in enumerate(shown):
            width, reach = self.value(way) * scale, self.reach and self.reach(way) * scale
            bar = {"label": way["title"], "figure": self.figure(way), "alarm": self.alarm(way), "y": ROW * row}
            bars.append(bar | {"width": width, "reach": reach, "figure_x": max(width, reach or 0) + 8})
        return {
            "ident": f"plot-{number}",
            "title": self.title.format_map(ways[0]),
            "height": ROW * len(bars),
            "description": "; ".join(f"{bar['label']}: {bar['figure']}" for bar in bars) + ".",
            "bars": bars,
        }


class Stage(NamedTuple):
    """A scene that is set up. `act` does one way, `facts` say on what, `log` is what a server has written."""

    act: Callable[[Any], Figures]
    facts: Figures
    log: Callable[[], str] = str
    leaves_out: Callable[[Any], str] = lambda way: ""  # why


class Scene:
    """One of settings.SCENES."""

    name: ClassVar[str]
    help: ClassVar[str]
    ways: ClassVar[Sequence[Any]]
    options: ClassVar[Sequence[Option]]
    columns: ClassVar[Sequence[Column]]
    bars: ClassVar[Sequence[Bars]]

    def stage(self, given: Mapping[str, Any]) -> AbstractContextManager[Stage]:
        """Set up, with these options."""
        raise NotImplementedError

    def shown(self, way: Figures) -> bool:
        """Whether the fault could be seen."""
        raise NotImplementedError

    def problems(self, way: Figures) -> Iterator[str]:
        """What is not as promised, of a way that prevents the fault or not."""
        raise NotImplementedError

    def story(self, way: Figures) -> str:
        """What happened, in a sentence."""
        raise NotImplementedError

    def rows(self, way: Figures) -> list[Figures]:
        """Of the table."""
        return [way]

    def table(self, result: Figures) -> list[list[list[str]]]:
        """For each way its title and then its cells, row by row."""
        return [
            [[way["title"], *(column.text(row) for column in self.columns)] for row in self.rows(way)]
            for way in result["ways"]
        ]

    def text(self, result: Figures) -> str:
        """The table for a terminal, and the story."""
        rows = [["way", *(column.head.lower() for column in self.columns)]]
        rows += [row for way in self.table(result) for row in way]
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, "", *(self.story(way) for way in result["ways"])])

    def plots(self, result: Figures) -> list[Figures]:
        return [bars.plot(number, result["ways"]) for number, bars in enumerate(self.bars)]


def replay(scene: Scene, ways: Sequence[Any], given: Mapping[str, Any], tell: Callable[[str], Any]) -> tuple[Any, str]:
    """Act out each way; the result, and the end of the server's log if it did not go as promised."""
    with scene.stage(given) as stage:
        found = []
        for way in ways:
            if reason := stage.leaves_out(way):
                tell(f"{way.title}: left out, {reason}.")
                continue
            tell(f"{way.title} ...")
            found.append(until_shown(scene, stage, way))
        result = {
            "engine": connection.vendor,
            "engine_name": connection.display_name,
            "engine_version": ".".join(str(part) for part in connection.get_database_version()),
            **stage.facts,
            "ways": found,
            "problems": [f"{way['slug']}: {problem}" for way in found for problem in problems(scene, way)],
        }
        return result, stage.log() if result["problems"] else ""


def until_shown(scene: Scene, stage: Stage, way: Any) -> Figures:
    """One round for a way that keeps what it promises; else rounds until the fault shows itself."""
    for rounds in range(1, ROUNDS + 1):
        figures = {"slug": way.slug, "title": way.title, "prevents": way.prevents, "rounds": rounds} | stage.act(way)
        if figures["prevents"] or scene.shown(figures):
            break
    return figures


def problems(scene: Scene, way: Figures) -> Iterator[str]:
    yield from scene.problems(way)
    if not way["prevents"] and not scene.shown(way):
        yield f"nothing went wrong in {way['rounds']} rounds; the fault was not shown."


def scenes() -> dict[str, Scene]:
    """All that are there, by name."""
    return {scene.name: scene() for scene in map(import_string, settings.SCENES)}


def many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def extra(number: int) -> str:
    """For the figure of a bar, and in sentences."""
    return f" ({number} too many)" if number > 0 else ""


def listed(statuses: Mapping[str, int]) -> str:
    return ", ".join(f"{number} x {status}" for status, number in statuses.items())
