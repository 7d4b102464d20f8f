"""Breaking from the admin: who may, and exactly the holder that was shown, with a log entry and a message."""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.test import override_settings

from django_distlock import LockLost, advisory_lock, held_locks
from django_distlock.backends.memory import MemoryBackend
from django_distlock.operations.admin.rows import signed
from tests.operations.admin.pages import ALIASES, BREAK, LIST, address, chosen, names, rows, shown, text, told
from tests.operations.world import listening

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

pytestmark = pytest.mark.usefixtures("two_aliases")
GONE = "has changed hands or was released; it was not broken."


def test_the_holder_loses_it_and_the_log_says_to_whom(
    as_: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    client = as_("both")
    lease = advisory_lock("stuck", using="leasetable", timeout=1).acquire()
    (row,) = rows(client.get(f"{LIST}?q=stuck").text)
    page = text(client.get(address(client, "stuck", "break")).text)
    assert "Break this lock?" in page
    assert row["holder"] in page
    with listening("stuck") as heard, caplog.at_level(logging.WARNING, "django_distlock.operations"):
        answer = client.post(BREAK, {"lock": shown(client, "stuck"), "reason": "it\r\nhangs \x1b[2J"})
    assert (answer.status_code, answer.url) == (302, LIST)
    assert told(answer) == [f"The lock “stuck” was broken. It was held by {row['holder']}."]
    with pytest.raises(LockLost):
        lease.release()
    assert heard.facts("broken")["reason"] == "admin both: it hangs \\x1b[2J"
    assert "admin both: it hangs" in caplog.text
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.action_flag, entry.object_repr) == ("both", CHANGE, "stuck")
    for part in ("leasetable", row["holder"], f"fence {row['fence']}", "Reason: it hangs"):
        assert part in entry.change_message
    # the link in the log leads to a page that says that it is over
    gone = client.get(f"/admin/{entry.get_admin_url().partition('/admin/')[2]}")
    assert (gone.status_code, "no longer held" in gone.text) == (404, True)


def test_whoever_has_it_meanwhile_keeps_it(boss: Client) -> None:
    with advisory_lock("changing", using="leasetable", timeout=1):
        page, yes = address(boss, "changing", "break"), shown(boss, "changing")
        assert address(boss, "changing", "break") == page  # as long as one holder has it
    with advisory_lock("changing", using="leasetable", timeout=1) as lease:
        answer = boss.get(page)
        assert (answer.status_code, "has another holder" in answer.text) == (404, True)
        assert told(boss.post(BREAK, {"lock": yes})) == [f"The lock “changing” {GONE}"]
        lease.ensure_held()
    assert told(boss.post(BREAK, {"lock": yes}))[-1] == f"The lock “changing” {GONE}"
    for nonsense in ("", "x", "memory/x", "no-such-alias/key/0", "memory/" + "k" * 5000 + "/0", yes[:-1] + "_"):
        assert boss.post(BREAK, {"lock": nonsense}).status_code == 403
        assert boss.post(LIST, {"selected": nonsense}).status_code == 302
        assert boss.get(f"{LIST}{nonsense.replace('/', '_2F') or '-'}/change/").status_code == 404
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("using", ["postgres", "mysql"])
def test_a_session_that_has_no_such_lock_any_more_is_not_ended(boss: Client, using: str, name: str) -> None:
    """Though it is the session that was shown, and has another lock."""
    name = name[-40:].rpartition("[")[2]
    with (
        override_settings(DISTLOCK={using: ALIASES[using]}),
        advisory_lock(f"{name} kept", using=using, timeout=5) as kept,
    ):
        with advisory_lock(name, using=using, timeout=5):
            yes = shown(boss, name)
        assert told(boss.post(BREAK, {"lock": yes})) == [f"The lock “{name}” {GONE}"]
        kept.ensure_held()
    assert not LogEntry.objects.exists()


def test_several_at_once(boss: Client) -> None:
    leases = [advisory_lock(f"many{number}", using="memory", timeout=1).acquire() for number in range(101)]
    asked = chosen(*(address(boss, f"many{number}") for number in (3, 4, 50, 51, 52, 53)))
    question = boss.post(LIST, asked)
    assert "Break these locks?" in question.text
    found = re.findall(r'name="lock" value="([^"]+)"', question.text)
    assert not any(lease.lost for lease in leases)
    assert told(boss.post(BREAK, {"lock": found})) == ["6 locks were broken."]
    assert [number for number, lease in enumerate(leases) if lease.lost] == [3, 4, 50, 51, 52, 53]
    assert LogEntry.objects.count() == 6
    for lease in leases:
        lease.__exit__(KeyError, None, None)


def test_the_way_back_leads_to_the_list_and_nowhere_else(boss: Client) -> None:
    with advisory_lock("back", using="memory", timeout=1):
        page, question = address(boss, "back"), address(boss, "back", "break")
        assert "_changelist_filters=q%3Dback%26o%3D1" in boss.get(f"{LIST}?q=back&o=1").text
        assert f'href="{LIST}?q=back&amp;o=1"' in boss.get(f"{page}?_changelist_filters=q%3Dback%26o%3D1").text
        for hostile in (
            "//evil.example/",
            "https://evil.example/",
            "javascript:alert(1)",
            "\r\nSet-Cookie: a=b",
            "'\">",
        ):
            asked = {"_changelist_filters": hostile, "next": hostile}
            for answer in (boss.get(page, asked), boss.get(question, asked)):
                links = re.findall(r'(?:href|action)="([^"]*)"', answer.text)
                assert all(re.match(r"/(?!/)|#", link) for link in links), links
            answer = boss.post(f"{BREAK}?{urlencode(asked)}", {"next": hostile})
            assert (answer.status_code, answer.url.partition("?")[0]) == (302, LIST)
            assert not set(answer.url) & set("\r\n\"'<> ")


class Unbreakable(MemoryBackend):
    """A backend of somebody else's that cannot take a lock away."""

    supports_break = False


def test_what_cannot_be_broken_has_no_button_and_says_so_if_asked(boss: Client) -> None:
    firm = {"firm": {"BACKEND": f"{__name__}.Unbreakable"}}
    with override_settings(DISTLOCK=firm), advisory_lock("kept", using="firm", timeout=1) as lease:
        page = address(boss, "kept")
        assert names(boss) == ["kept"]
        assert 'name="selected"' not in boss.get(LIST).text
        assert "Break this lock" not in boss.get(page).text
        asked = boss.get(address(boss, "kept", "break")).text
        assert "These cannot be broken and are left out" in asked
        assert 'name="lock"' not in asked
        (info,) = held_locks("firm")[0].locks
        answer = boss.post(BREAK, {"lock": signed(info)})
        assert told(answer) == ["The lock “kept” cannot be broken here."]
        lease.ensure_held()
    assert not LogEntry.objects.exists()


# By GET and by POST: the list, its refresh (nothing is chosen), what was chosen, the page of a lock, the question, and
# the answer to it.
EVERYTHING = [(200, 302)] * 2 + [(200, 200)] + [(200, 403)] * 2 + [(302, 302)]
EXPECTED = {
    "anonymous": [(302, 302)] * 6,
    "nobody": [(403, 403)] * 6,
    "breaker": [(403, 403)] * 6,  # the page shows the holder, so one must be allowed to view, too
    "viewer": [(200, 403)] * 4 + [(403, 403)] * 2,
    "both": EVERYTHING,
    "boss": EVERYTHING,
}


@pytest.mark.parametrize("person", EXPECTED)
def test_who_may_do_what(as_: Callable[..., Client], boss: Client, person: str) -> None:
    """Every address by GET and by POST."""
    client, may, refresh = as_(person), person in ("both", "boss"), {"X-Distlock-Refresh": "1"}
    with advisory_lock("gone", using="memory", timeout=1):
        gone = shown(boss, "gone")
    with advisory_lock("matrix", using="memory", timeout=1) as lease:
        page = address(boss, "matrix")
        # who may break is asked about a lock that nobody holds
        yes = {"lock": gone if may else shown(boss, "matrix"), "reason": "x"}
        asked = [(LIST, {}, {}), (LIST, {}, refresh), (LIST, chosen(page), {}), (page, {}, {})]
        asked += [(page.replace("/change/", "/break/"), {}, {}), (BREAK, yes, {})]
        for (url, data, headers), expected in zip(asked, EXPECTED[person], strict=True):
            answers = client.get(url, headers=headers), client.post(url, data, headers=headers)
            assert tuple(answer.status_code for answer in answers) == expected, url
            for answer in answers:
                if answer.status_code == 302:
                    assert answer.url.startswith("/admin/login/?next=" if person == "anonymous" else LIST)
                if answer.status_code == 403:
                    assert "matrix" not in answer.text
        if EXPECTED[person][0][0] == 200:
            assert ("Break selected locks" in client.get(LIST).text) is may
            assert ("Break this lock" in client.get(page).text) is may
        lease.ensure_held()
    assert not LogEntry.objects.exists()


def test_a_post_from_elsewhere_is_refused(as_: Callable[..., Client]) -> None:
    client = as_("boss", enforce_csrf_checks=True)
    with suppress(LockLost), advisory_lock("csrf", using="memory", timeout=1) as lease:
        page, yes = address(client, "csrf", "break"), shown(client, "csrf")
        for url, data in ((BREAK, {"lock": yes}), (LIST, chosen(page))):
            assert client.post(url, data).status_code == 403
        lease.ensure_held()
        token = {"csrfmiddlewaretoken": client.get(page).context["csrf_token"]}
        assert client.post(BREAK, {"lock": yes, **token}).status_code == 302
        assert lease.lost
