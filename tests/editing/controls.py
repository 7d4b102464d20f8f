"""Forms with rows of inlines: what a browser would send of them."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from testproject.articles.models import Source


class Controls(HTMLParser):
    """The fields of the form with the id, or of the first one without."""

    def __init__(self, response: Any, form: str | None = None) -> None:
        super().__init__()
        self.fields: dict[str, Any] = {}
        self._form, self._inside = form, False
        self._select = self._area = ""
        self.feed(response.content.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        name, value = found.get("name") or "", found.get("value") or ""
        if tag == "form":
            self._inside = found.get("id") == self._form
        elif not self._inside:
            return
        elif tag == "textarea":
            self._area = name
            self.fields.setdefault(name, []).append("")
        elif tag == "select":
            self._select = name
        elif tag == "option" and "selected" in found and self._select:
            self.fields.setdefault(self._select, []).append(value)
        elif tag == "input" and name and found.get("type") not in ("submit", "button", "checkbox"):
            self.fields.setdefault(name, []).append(value)

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area][-1] += data.removeprefix("\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""
        elif tag == "select":
            self._select = ""
        elif tag == "form":
            self._inside = False


def names() -> list[str]:
    return list(Source.objects.order_by("name").values_list("name", flat=True))
