"""The README and the pages of the documentation, and the fenced blocks in them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = {
    str(path.relative_to(ROOT)): path
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
    if "_build" not in path.parts
}

_FENCE = re.compile(r"^```(?P<language>\S*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block; ``line`` is where its code begins. ``printed`` is the ```text block that follows it at once."""

    page: str
    line: int
    language: str
    code: str
    printed: str | None = None


def blocks(page: str, language: str = "python") -> list[Block]:
    """The blocks of one language on a page."""
    text = PAGES[page].read_text()
    found = list(_FENCE.finditer(text))
    result = []
    for number, match in enumerate(found):
        if match["language"] != language:
            continue
        following = found[number + 1] if number + 1 < len(found) else None
        printed = None
        if following and following["language"] == "text" and not text[match.end() : following.start()].strip():
            printed = following["code"]
        line = text.count("\n", 0, match.start("code")) + 1
        result.append(Block(page, line, language, match["code"], printed))
    return result


def tables(text: str) -> list[list[list[str]]]:
    """Every Markdown table in ``text`` as rows of cells."""
    found: list[list[list[str]]] = []
    inside = False
    for line in text.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not inside:
            found.append([])
            inside = True
        if not set("".join(cells)) <= {"-", ":", "|", " "}:
            found[-1].append(cells)
    return found
