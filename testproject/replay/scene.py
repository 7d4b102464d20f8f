"""What a scene is: a fault, the ways to prevent it, how they are acted out, and how that is judged and shown."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from django.conf import settings
from django.db import connection
from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Figures = dict[str, Any]  # what was measured, as it becomes JSON
ROUNDS = 5  # tries to make a fault show itself


@dataclass(frozen=True, slots=True)
class Way:
    """`slug` names it in commands and addresses, `code` is what makes it; `prevents`: is the fault ruled out?

    `lock` is the name of its lock, and `pauses` says whether a process is stopped in the middle of its work, where a
    scene has that.
    """

    slug: str
    title: str
    code: str
    summary: str
    prevents: bool
    run: Callable[..., Any]
    lock: str = ""
    pauses: bool = False


def way(title: str, code: str = "", *, prevents: bool = True, **traits: Any) -> Callable[[Callable[..., Any]], Way]:
    """Make a Way of the function that does it: its name is the slug, its docstring the summary."""

    def made(function: Callable[..., Any]) -> Way:
        slug, summary = function.__name__.replace("_", "-"), " ".join((function.__doc__ or "").split())
        return Way(slug, title, code, summary, prevents, function, **traits)

    return made


class Option(NamedTuple):
    """Of the scene's command."""

    name: str
    default: Any
    help: str


class Column(NamedTuple):
    """Of the table; `alarm`: anything but 0 is what a lock must prevent."""

    head: str
    key: str
    alarm: bool = False
    pattern: str = "{}"

    def text(self, row: Figures) -> str:
        return "-" if row[self.key] is None else self.pattern.format(row[self.key])


class Stage(NamedTuple):
    """A scene that is set up. `act` does one way and returns the rows of its table, `facts` say on what."""

    act: Callable[[Way], list[Figures]]
    facts: Figures


class Scene:
    """One of settings.SCENES."""

    name: ClassVar[str]
    help: ClassVar[str]
    ways: ClassVar[Sequence[Way]]
    options: ClassVar[Sequence[Option]]
    columns: ClassVar[Sequence[Column]]
    fault: ClassVar[tuple[str, ...]]  # the figures that are not 0 once the fault has shown itself
    plots: ClassVar[Sequence[tuple[str, str]]] = ()  # figures of a first row that are drawn as bars: key and title

    story: ClassVar[str]  # what happened, formatted with each row of a way

    @contextmanager
    def stage(self, options: Mapping[str, Any]) -> Iterator[Stage]:
        """Set up, with these options."""
        yield Stage(lambda way: self.act(way, **options), dict(options))

    def act(self, way: Way, **options: Any) -> list[Figures]:
        """Do one way, if nothing is to be set up before the first."""
        raise NotImplementedError

    def told(self, way: Figures) -> str:
        return f"{way['title']}: {'; '.join(self.story.format(**row) for row in way['rows'])}."

    def shown(self, way: Figures) -> bool:
        return any(row[key] for row in way["rows"] for key in self.fault)

    def more_problems(self, row: Figures, prevents: bool) -> Iterator[str]:
        """What is not as promised although no alarm says so."""
        yield from ()

    def problems(self, way: Figures) -> Iterator[str]:
        """Whatever a way does, it fails nowhere; a lock gives no alarm, and without one the fault shows itself."""
        for row in way["rows"]:
            yield from row.get("errors", ())
            if way["prevents"]:
                alarms = (column for column in self.columns if column.alarm and row[column.key])
                yield from (f"{column.head.lower()}: {column.text(row)}." for column in alarms)
            yield from self.more_problems(row, way["prevents"])
        if not way["prevents"] and not self.shown(way):
            yield f"nothing went wrong in {way['rounds']} rounds; the fault was not shown."

    def table(self, result: Figures) -> list[list[list[str]]]:
        """For each way its title and then its cells, row by row."""
        return [
            [[way["title"], *(column.text(row) for column in self.columns)] for row in way["rows"]]
            for way in result["ways"]
        ]

    def text(self, result: Figures) -> str:
        """The table for a terminal, and the story."""
        rows = [["way", *(column.head.lower() for column in self.columns)]]
        rows += [row for way in self.table(result) for row in way]
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        return "\n".join([*lines, "", *map(self.told, result["ways"])])

    def bars(self, key: str, title: str, ways: Sequence[Figures]) -> Figures:
        """A plot with one bar per way; `share` is the length in hundredths of the longest bar."""
        column = next(column for column in self.columns if column.key == key)
        rows = [(way["title"], way["rows"][0]) for way in ways if way["rows"][0][key] is not None]
        longest = max([row[key] for _, row in rows] + [0.001])
        bars = [
            {
                "label": label,
                "figure": column.text(row),
                "share": round(100 * row[key] / longest, 1),
                "alarm": any(row[fault] for fault in self.fault),
            }
            for label, row in rows
        ]
        return {"title": title.format_map(rows[0][1]) if rows else title, "bars": bars}


def replay(scene: Scene, options: Mapping[str, Any], tell: Callable[[str], Any]) -> Figures:
    """Act out each way."""
    with scene.stage(options) as stage:
        found = []
        for way in scene.ways:
            tell(f"{way.title} ...")
            found.append(until_shown(scene, stage, way))
        return {
            "engine": connection.vendor,
            "engine_name": connection.display_name,
            "engine_version": ".".join(str(part) for part in connection.get_database_version()),
            **stage.facts,
            "ways": found,
            "problems": [f"{way['slug']}: {problem}" for way in found for problem in scene.problems(way)],
        }


def until_shown(scene: Scene, stage: Stage, way: Way) -> Figures:
    """One round for a way that keeps what it promises; else rounds until the fault shows itself."""
    for rounds in range(1, ROUNDS + 1):
        figures = {"slug": way.slug, "title": way.title, "prevents": way.prevents, "rounds": rounds}
        figures["rows"] = stage.act(way)
        if way.prevents or scene.shown(figures):
            break
    return figures


def scenes() -> dict[str, Scene]:
    """All that are there, by name."""
    return {scene.name: scene() for scene in map(import_string, settings.SCENES)}
