"""System checks of templates and admins that use edit locks, as far as their source can tell."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.checks import CheckMessage, Warning
from django.template import engines
from django.template.backends.django import DjangoTemplates

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django.apps import AppConfig

TAG = re.compile(r"\{%-?\s*edit_lock\b")
FORM = re.compile(r"<form\b[^>]*>", re.IGNORECASE | re.DOTALL)
OFF = re.compile(r"""\bautocomplete\s*=\s*["']?off\b""", re.IGNORECASE)
COMMENT = re.compile(r"\{#.*?#\}|\{% comment .*?%\}.*?\{% endcomment %\}", re.DOTALL)
SUFFIXES = (".html", ".htm", ".txt", ".jinja")
# Templates that are read; a project with more is not searched to its end.
MOST_TEMPLATES = 20_000


def check_templates(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Forms with ``{% edit_lock %}`` that a browser may fill in with old text; pages whose script has no address."""
    found: list[CheckMessage] = []
    for path in _templates():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if TAG.search(text) is None:
            continue
        found.extend(
            Warning(
                f'{path}: the form with {{% edit_lock %}} has no autocomplete="off".',
                hint="Browsers put text that was typed before into a new page, after a reload or the button Back, and "
                'the save would pass. Write <form method="post" autocomplete="off">.',
                id="distlock.W075",
            )
            for _form in _forms_with_autocomplete(text)
        )
    return found


def _forms_with_autocomplete(text: str) -> Iterator[str]:
    """The opening tags of the forms around the template tag, if they leave autocompletion on.

    A tag without a form before it in the same file stands in a part of a page, whose form is not known.
    """
    plain = COMMENT.sub("", text)
    for tag in TAG.finditer(plain):
        before = plain[: tag.start()]
        opened = list(FORM.finditer(before))
        if opened and "</form" not in before[opened[-1].end() :].lower() and not OFF.search(opened[-1][0]):
            yield opened[-1][0]


def _templates() -> Iterator[Path]:
    count = 0
    for engine in engines.all():
        if not isinstance(engine, DjangoTemplates):
            continue
        for folder in engine.template_dirs:
            if "site-packages" in Path(folder).parts:  # not the project's
                continue
            for path in Path(folder).rglob("*"):
                if path.suffix in SUFFIXES and path.is_file():
                    count += 1
                    if count > MOST_TEMPLATES:
                        return
                    yield path
