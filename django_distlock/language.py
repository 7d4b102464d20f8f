"""The language in which the package's own texts come out.

A site may run in a language into which these texts are not translated: then they are English, and a page that said
``lang="it"`` would be read to blind visitors with an Italian voice (WCAG 3.1.1).
"""

from __future__ import annotations

from typing import Any

from django.utils.translation import get_language_info, pgettext


def text_language() -> str:
    """The code of the language of texts that are translated now, such as ``"de"``: each catalog names its own."""
    # Translators: the code of the language into which you translate, such as "de" or "pt-br".
    return pgettext("code of the language of these translations", "en")


def language_of_texts() -> dict[str, Any]:
    """Facts about it for a template: ``code``, ``bidi`` and the names that Django knows."""
    facts: dict[str, Any] = get_language_info(text_language())
    return facts
