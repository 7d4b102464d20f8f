"""Findings of the system checks, for tests that swap the project's addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.checks import run_checks

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

# The demo has edit locks and browser locks: a test with other addresses has none for their scripts, one with another
# database no tables.
OF_THE_SCENE = {"distlock.W071", "distlock.W082"}


def findings(tag: str = "distlock", **how: Any) -> list[CheckMessage]:
    """What ``manage.py check --tag distlock`` finds, but for the demo's locks."""
    return [message for message in run_checks(tags=[tag], **how) if message.id not in OF_THE_SCENE]
