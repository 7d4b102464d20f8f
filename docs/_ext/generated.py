"""Directives for what is made from code and from runs: ``{backend-table}`` and ``{bench-figures}``."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend_flags import backends, table
from bench_figures import figures
from sphinx.ext.autodoc.mock import mock
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from docutils.nodes import Node
    from sphinx.application import Sphinx


class BackendTable(SphinxDirective):
    def run(self) -> list[Node]:
        # a backend whose driver is not installed cannot be imported else
        with mock(self.config.autodoc_mock_imports):
            text = table("[{engine}]({page}.md)")
            for backend in backends():
                self.env.note_dependency(inspect.getfile(backend))
        return self.parse_text_to_nodes(text)


class BenchFigures(SphinxDirective):
    def run(self) -> list[Node]:
        path = Path(self.env.srcdir) / "figures.json"
        self.env.note_dependency(str(path))
        return self.parse_text_to_nodes(figures(path))


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("backend-table", BackendTable)
    app.add_directive("bench-figures", BenchFigures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
