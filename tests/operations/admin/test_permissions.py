"""Who may do what: every person, every address, GET and POST."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from django.contrib.admin.models import LogEntry

from django_distlock import LockLost, advisory_lock
from tests.operations.admin.pages import address, row_of
from tests.operations.admin.people import BREAK, LIST

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

pytestmark = pytest.mark.usefixtures("two_aliases")

# What each person gets: (list, refresh, detail, confirmation) by GET, BREAK by GET; then the same by POST, the action
# with a lock chosen, and BREAK with a lock that is not held.
ALL_302, ALL_403 = dict.fromkeys("GP", 302), dict.fromkeys("GP", 403)
LOOKS = {"G": 200, "P": 403}
EXPECTED: dict[str, dict[str, dict[str, int]]] = {
    "anonymous": dict.fromkeys(("list", "refresh", "action", "detail", "confirm", "break"), ALL_302),
    "nobody": dict.fromkeys(("list", "refresh", "action", "detail", "confirm", "break"), ALL_403),
    "breaker": dict.fromkeys(("list", "refresh", "action", "detail", "confirm", "break"), ALL_403),
    "viewer": {
        "list": LOOKS,
        "refresh": LOOKS,
        "action": LOOKS,
        "detail": LOOKS,
        "confirm": ALL_403,
        "break": ALL_403,
    },
    "both": {
        "list": {"G": 200, "P": 200},
        "refresh": {"G": 200, "P": 200},
        "action": {"G": 200, "P": 200},
        "detail": LOOKS,
        "confirm": LOOKS,
        "break": {"G": 302, "P": 302},
    },
}
EXPECTED["boss"] = EXPECTED["both"]


@pytest.mark.parametrize("person", EXPECTED)
def test_every_address_by_get_and_post(as_: Callable[..., Client], person: str) -> None:
    client = as_(person)
    with advisory_lock("matrix", using="memory", timeout=1) as lease:
        row = row_of("memory", "matrix")
        chosen = {"action": "break_selected", "index": "0", "_selected_action": row.pk}
        asked = {
            "list": (LIST, {}, {}),
            "refresh": (LIST, {}, {"X-Distlock-Refresh": "1"}),
            "action": (LIST, chosen, {}),
            "detail": (address(row), {}, {}),
            "confirm": (address(row, "break"), {}, {}),
            "break": (BREAK, {"lock": "memory/gone/0", "reason": "x"}, {}),
        }
        for what, (url, data, headers) in asked.items():
            got = {
                "G": client.get(url, data if what == "action" else {}, headers=headers),
                "P": client.post(url, data, headers=headers),
            }
            if what == "action" and person in ("viewer", "both", "boss"):
                got["G"] = client.get(url)  # the action's fields are no filters
            statuses = {method: answer.status_code for method, answer in got.items()}
            assert statuses == EXPECTED[person][what], what
            for answer in got.values():
                if answer.status_code == 302:
                    assert answer.url.startswith("/admin/login/?next=" if person == "anonymous" else LIST)
                if answer.status_code == 403:
                    assert "matrix" not in answer.text
        lease.ensure_held()  # nothing of that has broken it
        assert not lease.lost
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(("person", "sees"), [("viewer", False), ("both", True), ("boss", True)])
def test_only_who_may_break_sees_how(as_: Callable[..., Client], person: str, sees: bool) -> None:
    client = as_(person)
    with advisory_lock("seen", using="memory", timeout=1):
        row = row_of("memory", "seen")
        assert ("break_selected" in client.get(LIST).text) is sees
        assert ("Break this lock" in client.get(address(row)).text) is sees


@pytest.mark.parametrize("person", ["nobody", "breaker", "viewer"])
def test_who_may_not_cannot(as_: Callable[..., Client], person: str) -> None:
    """The same request that works for who may (test_breaking.py)."""
    with advisory_lock("kept", using="memory", timeout=1) as lease:
        row = row_of("memory", "kept")
        assert as_(person).post(BREAK, {"lock": row.pk}).status_code == 403
        lease.ensure_held()


def test_a_post_from_elsewhere_is_refused(as_: Callable[..., Client]) -> None:
    client = as_("boss", enforce_csrf_checks=True)
    with suppress(LockLost), advisory_lock("csrf", using="memory", timeout=1) as lease:
        row = row_of("memory", "csrf")
        chosen = {"action": "break_selected", "index": "0", "_selected_action": row.pk}
        assert client.post(BREAK, {"lock": row.pk}).status_code == 403
        assert client.post(LIST, chosen).status_code == 403
        page = client.get(address(row, "break"))
        token = {"csrfmiddlewaretoken": page.context["csrf_token"]}
        lease.ensure_held()
        assert client.post(BREAK, {"lock": row.pk, **token}).status_code == 302
        assert lease.lost
