"""What people do in the browser cases, and what they see."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from django.contrib.auth.models import Permission

from testproject.articles.people import person as user

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.browsers import Tab

BANNER = ".distlock-banner"
BODY = "[name=body]"
SAVE = "form button:not([type])"


def held(tab: Tab) -> None:
    tab.until(lambda: tab.value("[name=distlock_edit_lease]"), "the lock was not taken")


def type_and_hold(tab: Tab, text: str = " Typed.", selector: str = BODY) -> None:
    tab.type(selector, text)
    held(tab)


def banner(tab: Tab, text: str) -> None:
    tab.until(lambda: text in tab.text(BANNER), lambda: f"the banner does not say {text!r} but {tab.text(BANNER)!r}")


def offered(tab: Tab, text: str) -> None:
    """Unsaved text is offered; it says against which version it was typed."""
    tab.until(lambda: text in tab.text(".distlock-kept"), lambda: f"{tab.text('.distlock-kept')!r} is offered")


def read_only(tab: Tab, selector: str = BODY) -> bool:
    return bool(tab.run("return document.querySelector(arguments[0]).readOnly", selector))


def busy(tab: Tab, who: str) -> None:
    banner(tab, f"{who} is editing this")
    assert read_only(tab)


def take_over(tab: Tab, reason: str = "") -> None:
    tab.click("[data-distlock-action=take_over]")
    if reason:
        tab.type(f"{BANNER} input", reason)
    tab.click("[data-distlock-action=confirm]")
    held(tab)


def save(tab: Tab, selector: str = SAVE) -> None:
    tab.follow(lambda: tab.click(selector))


def page(tab: Tab) -> str:
    """All of it, with what stands in fields."""
    return str(tab.run("return document.documentElement.outerHTML"))


@contextmanager
def allowed(slug: str, codename: str) -> Iterator[None]:
    """The person has a permission more."""
    permission = Permission.objects.get(codename=codename)
    user(slug).user_permissions.add(permission)
    try:
        yield
    finally:
        user(slug).user_permissions.remove(permission)
