"""Breaking from the admin: exactly the holder that was shown, with a log entry and a message."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.test import override_settings

from django_distlock import LockLost, advisory_lock
from django_distlock.backends.memory import MemoryBackend
from tests.operations.admin.pages import ALIASES, BREAK, LIST, address, key_of, names, rows, shown, text, told
from tests.operations.listening import listening

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

pytestmark = pytest.mark.usefixtures("two_aliases")


def test_the_holder_loses_it_and_the_log_says_who_did_it(
    as_: Callable[..., Client], caplog: pytest.LogCaptureFixture
) -> None:
    client = as_("both")
    lease = advisory_lock("stuck", using="leasetable", timeout=1).acquire()
    (row,) = rows(client.get(f"{LIST}?q=stuck").text)
    page = client.get(address(client, "stuck", "break")).text
    assert "Break this lock?" in page
    assert row["holder"] in text(page)
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
    assert gone.status_code == 404
    assert "no longer held" in gone.text


def test_whoever_has_it_meanwhile_keeps_it(boss: Client) -> None:
    with advisory_lock("changing", using="leasetable", timeout=1):
        page, yes = address(boss, "changing", "break"), shown(boss, "changing")
        assert address(boss, "changing", "break") == page  # as long as one holder has it
    with advisory_lock("changing", using="leasetable", timeout=1) as lease:
        answer = boss.get(page)
        assert answer.status_code == 404
        assert "has another holder" in answer.text
        assert told(boss.post(BREAK, {"lock": yes})) == ["The lock “changing” has changed hands; it was not broken."]
        lease.ensure_held()
    assert "is no longer held; nothing was broken" in told(boss.post(BREAK, {"lock": yes}))[-1]
    for nonsense in ("", "x", "memory/x", "no-such-alias/key/0", "memory/" + "k" * 5000 + "/0"):
        assert boss.post(BREAK, {"lock": nonsense}).status_code == 302
        assert boss.get(f"{LIST}{nonsense.replace('/', '_2F') or '-'}/change/").status_code == 404
    assert not LogEntry.objects.exists()


def test_another_holding_of_the_same_session_is_not_broken(boss: Client) -> None:
    """Where a lock belongs to a database session, only the time tells: since when it is held or, if that was not
    known, when it was listed."""
    with (
        override_settings(DISTLOCK={"postgres": ALIASES["postgres"]}),
        advisory_lock("again", using="postgres", timeout=5) as lease,
    ):
        yes = shown(boss, "again")
        key, _, stamp = yes.rpartition("@")
        for earlier in (f"{key}@{float(stamp) - 100:.3f}", f"{key}?{float(stamp) - 100:.3f}"):
            answer = boss.post(BREAK, {"lock": earlier})
            assert told(answer)[-1] == "The lock “again” has changed hands; it was not broken."
        lease.ensure_held()
        assert not LogEntry.objects.exists()


def test_several_at_once_but_never_more_than_one_can_read(boss: Client) -> None:
    leases = [advisory_lock(f"many{number}", using="memory", timeout=1).acquire() for number in range(101)]
    keys = [key_of(address(boss, f"many{number}")) for number in (3, 4, 50, 51, 52, 53)]
    asked = {"action": "break_selected", "index": "0", "_selected_action": keys}
    everything = boss.post(LIST, asked | {"select_across": "1"})
    assert everything.status_code == 302
    assert told(everything) == ["At most 100 locks can be broken at once."]
    question = boss.post(LIST, asked)
    assert "Break these locks?" in question.text
    found = re.findall(r'name="lock" value="([^"]+)"', question.text)
    assert len(found) == 6
    assert not any(lease.lost for lease in leases)
    assert told(boss.post(BREAK, {"lock": found})) == ["6 locks were broken."]
    assert [number for number, lease in enumerate(leases) if lease.lost] == [3, 4, 50, 51, 52, 53]
    assert LogEntry.objects.count() == 6
    for lease in leases:
        lease._release(False)


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
                assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in links), links
            answer = boss.post(f"{BREAK}?{urlencode(asked)}", {"next": hostile})
            assert (answer.status_code, answer.url.partition("?")[0]) == (302, LIST)
            assert not set(answer.url) & set("\r\n\"'<> ")


class Unbreakable(MemoryBackend):
    """A backend of somebody else's that cannot take a lock away."""

    supports_break = False


def test_what_cannot_be_broken_has_no_button_and_says_so_if_asked(boss: Client) -> None:
    with (
        override_settings(DISTLOCK={"firm": {"BACKEND": f"{__name__}.Unbreakable"}}),
        ExitStack() as stack,
    ):
        lease = stack.enter_context(advisory_lock("kept", using="firm", timeout=1))
        page = address(boss, "kept")
        assert names(boss) == ["kept"]
        assert 'name="_selected_action"' not in boss.get(LIST).text
        assert "Break this lock" not in boss.get(page).text
        asked = boss.get(address(boss, "kept", "break")).text
        assert "These cannot be broken and are left out" in asked
        assert 'name="lock"' not in asked
        assert told(boss.post(BREAK, {"lock": key_of(page)})) == ["The lock “kept” cannot be broken here."]
        lease.ensure_held()
    assert not LogEntry.objects.exists()
