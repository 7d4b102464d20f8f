"""Who may do what: every person, every address, GET and POST."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from django.contrib.admin.models import LogEntry

from django_distlock import LockLost, advisory_lock
from tests.operations.admin.pages import BREAK, LIST, address, key_of, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

pytestmark = pytest.mark.usefixtures("two_aliases")

# By GET and by POST: the list, its refresh, its action, the page of a lock, the question, and the answer to it.
EVERYTHING = [(200, 200)] * 3 + [(200, 403)] * 2 + [(302, 302)]
EXPECTED = {
    "anonymous": [(302, 302)] * 6,
    "nobody": [(403, 403)] * 6,
    "breaker": [(403, 403)] * 6,  # the page shows the holder, so one must be allowed to view, too
    "viewer": [(200, 403)] * 4 + [(403, 403)] * 2,
    "both": EVERYTHING,
    "boss": EVERYTHING,
}


@pytest.mark.parametrize("person", EXPECTED)
def test_every_address_by_get_and_post(as_: Callable[..., Client], boss: Client, person: str) -> None:
    client, may = as_(person), person in ("both", "boss")
    with advisory_lock("matrix", using="memory", timeout=1) as lease:
        page = address(boss, "matrix")
        chosen = {"action": "break_selected", "index": "0", "_selected_action": key_of(page)}
        # who may break is asked about a lock that nobody holds
        yes = {"lock": "memory/gone/0" if may else shown(boss, "matrix"), "reason": "x"}
        asked = [
            (LIST, {}, {}),
            (LIST, {}, {"X-Distlock-Refresh": "1"}),
            (LIST, chosen, {}),
            (page, {}, {}),
            (page.replace("/change/", "/break/"), {}, {}),
            (BREAK, yes, {}),
        ]
        for (url, data, headers), expected in zip(asked, EXPECTED[person], strict=True):
            answers = client.get(url, headers=headers), client.post(url, data, headers=headers)
            assert tuple(answer.status_code for answer in answers) == expected, url
            for answer in answers:
                if answer.status_code == 302:
                    assert answer.url.startswith("/admin/login/?next=" if person == "anonymous" else LIST)
                if answer.status_code == 403:
                    assert "matrix" not in answer.text
        if EXPECTED[person][0][0] == 200:
            assert ("break_selected" in client.get(LIST).text) is may
            assert ("Break this lock" in client.get(page).text) is may
        lease.ensure_held()
    assert not LogEntry.objects.exists()


def test_a_post_from_elsewhere_is_refused(as_: Callable[..., Client]) -> None:
    client = as_("boss", enforce_csrf_checks=True)
    with suppress(LockLost), advisory_lock("csrf", using="memory", timeout=1) as lease:
        page, yes = address(client, "csrf", "break"), shown(client, "csrf")
        chosen = {"action": "break_selected", "index": "0", "_selected_action": key_of(page)}
        assert client.post(BREAK, {"lock": yes}).status_code == 403
        assert client.post(LIST, chosen).status_code == 403
        lease.ensure_held()
        token = {"csrfmiddlewaretoken": client.get(page).context["csrf_token"]}
        assert client.post(BREAK, {"lock": yes, **token}).status_code == 302
        assert lease.lost
