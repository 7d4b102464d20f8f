"""Checks of templates with the tag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.template import engines

from django_distlock.editing.http.template_checks import check_templates

if TYPE_CHECKING:
    from pathlib import Path

TAG = "{% load editing %}"


@pytest.fixture
def found(tmp_path: Path, settings: Any) -> Any:
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "APP_DIRS": False, "DIRS": [tmp_path]}]
    assert engines

    def ids(text: str) -> list[str | None]:
        (tmp_path / "form.html").write_text(text)
        return [message.id for message in check_templates(None)]

    return ids


FORMS = {
    '<form method="post">{% edit_lock object %}</form>': ["distlock.W075"],
    '<form method="post" autocomplete="off">{% edit_lock object %}</form>': [],
    "<form autocomplete=off method=post>{%edit_lock object%}</form>": [],
    "<FORM\n method=post>\n{% edit_lock object when='open' %}</FORM>": ["distlock.W075"],
    "<form></form>{% edit_lock object %}": [],
    "<form>{# {% edit_lock object %} #}</form>": [],
    "<form>{% edit_locked object %}</form>": [],
    '<form autocomplete="off"></form><form>{% edit_lock object %}</form>': ["distlock.W075"],
}


def test_forms(found: Any) -> None:
    assert {text: found(TAG + text) for text in FORMS} == FORMS


def test_addresses(found: Any, settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.idempotency.served"
    assert found('<form autocomplete="off">{% edit_lock object %}</form>') == ["distlock.W076"]
    assert found("<form></form>") == []
