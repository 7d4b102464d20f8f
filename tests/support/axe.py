"""The accessibility engine axe-core, as `make browser` has it from npm, on the page that a browser shows."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.browsers import Profile

VERSION = "4.14.1"
SCRIPT = Path(sys.prefix) / "axe" / "node_modules" / "axe-core" / "axe.min.js"
# The admin's links fade from colour to colour when light and dark change: contrast is judged afterwards.
RUN = (
    "const [options, include, exclude, done] = arguments;"
    "const context = include.length ? {include, exclude} : document;"
    "const fades = () => document.getAnimations().filter(each => each instanceof CSSTransition);"
    "new Promise(resolve => setTimeout(resolve, 50))"
    ".then(() => Promise.allSettled(fades().map(each => each.finished)))"
    ".then(() => axe.run(context, options)).then(found => done(found.violations))"
)


@cache
def script() -> str:
    try:
        return SCRIPT.read_text(encoding="utf-8")
    except OSError as error:
        raise RuntimeError(f"axe-core is not at {SCRIPT}: run `make browser`.") from error


def faults(profile: Profile, *only: str, within: Sequence[str] = (), without: Sequence[str] = ()) -> list[str]:
    """What axe calls serious or critical; of all rules, or of some; on the whole page, or in what ``within`` finds."""
    if not profile.run("return 'axe' in window"):
        profile.run(script())
        assert profile.run("return axe.version") == VERSION
    options: dict[str, Any] = {"resultTypes": ["violations"]} | ({"runOnly": list(only)} if only else {})
    context = [[selector] for selector in within], [[selector] for selector in without]
    return [
        f"{fault['id']}: {node['html'][:300]} {node['failureSummary'][:300]}"
        for fault in profile.execute_async_script(RUN, options, *context)
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
