"""Findings of the system checks, for tests that swap the project's addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import run_checks

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

# The demo has edit locks: a test with other addresses has none for its script, one with another database no table.
OF_THE_SCENE = {"distlock.W071", "distlock.W076"}


def findings(tag: str = "distlock", **how: Any) -> list[CheckMessage]:
    """What ``manage.py check --tag distlock`` finds, but for the demo's edit locks."""
    return [message for message in run_checks(tags=[tag], **how) if message.id not in OF_THE_SCENE]
