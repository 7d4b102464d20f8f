"""Breaking from the admin: exactly the holder that was shown, with a log entry and a message."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.messages import get_messages
from django.test import override_settings

from django_distlock import LockLost, advisory_lock, signals
from django_distlock.backends.memory import MemoryBackend
from django_distlock.operations.admin import breaking
from django_distlock.operations.admin import rows as rows_module
from django_distlock.operations.admin.rows import LockRow, seen
from django_distlock.records import BackendReport, LockInfo
from tests.operations.admin.pages import address, row_of, text
from tests.operations.admin.people import BREAK, LIST

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

pytestmark = pytest.mark.usefixtures("two_aliases")


def told(answer) -> list[str]:
    return [str(message) for message in get_messages(answer.wsgi_request)]


@pytest.mark.parametrize("using", ["memory", "leasetable"])
def test_the_holder_loses_it_and_the_log_says_who_did_it(
    as_: Callable[..., Client], using: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = as_("both")
    reasons = []

    def receive(reason: str, **_facts: object) -> None:
        reasons.append(reason)

    signals.lock_broken.connect(receive)
    lease = advisory_lock("stuck", using=using, timeout=1).acquire()
    try:
        row = row_of(using, "stuck")
        page = client.get(address(row, "break")).text
        assert "Break this lock?" in page
        assert row.info.holder in text(page)
        assert f'value="{row.seen}"' in page
        with caplog.at_level(logging.WARNING, "django_distlock.operations"):
            answer = client.post(BREAK, {"lock": row.seen, "reason": "it\r\nhangs \x1b[2J"})
        assert (answer.status_code, answer.url) == (302, LIST)
        assert told(answer) == [f"The lock “stuck” was broken. It was held by {row.info.holder}."]
    finally:
        signals.lock_broken.disconnect(receive)
        with pytest.raises(LockLost):
            lease.release()
    assert reasons == ["admin both: it hangs \\x1b[2J"]
    assert "admin both: it hangs" in caplog.text
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.action_flag, entry.object_repr) == ("both", CHANGE, "stuck")
    assert entry.content_type.model == "heldlock"
    for part in (using, row.info.holder, f"fence {row.info.fence}", "Reason: it hangs"):
        assert part in entry.change_message
    # the link in the log leads to a page that says that it is over
    gone = client.get(f"/admin/{entry.get_admin_url().partition('/admin/')[2]}")
    assert gone.status_code == 404
    assert "no longer held" in gone.text


@pytest.mark.parametrize("using", ["memory", "leasetable"])
def test_whoever_has_it_meanwhile_keeps_it(boss: Client, using: str) -> None:
    with advisory_lock("changing", using=using, timeout=1):
        row = row_of(using, "changing")
        assert row_of(using, "changing").pk == row.pk  # as long as one holder has it
    with advisory_lock("changing", using=using, timeout=1) as lease:
        page = boss.get(address(row, "break"))
        assert page.status_code == 404
        assert "has another holder" in page.text
        answer = boss.post(BREAK, {"lock": row.pk})
        assert told(answer) == ["The lock “changing” has changed hands; it was not broken."]
        lease.ensure_held()
    assert not LogEntry.objects.exists()


def test_it_may_change_hands_between_looking_and_breaking(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison is that of the engine: what was listed an instant ago is not trusted."""
    lock = advisory_lock("racy", using="leasetable", timeout=1)
    leases = [lock.acquire()]
    row = row_of("leasetable", "racy")
    break_lock = rows_module.break_lock

    def in_between(*args, **kwargs) -> bool:
        leases.pop().release()
        leases.append(lock.acquire())
        return break_lock(*args, **kwargs)

    monkeypatch.setattr(rows_module, "break_lock", in_between)
    answer = boss.post(BREAK, {"lock": row.pk})
    assert told(answer) == ["The lock “racy” has changed hands; it was not broken."]
    leases.pop().release()


def test_a_lock_that_was_given_back(boss: Client) -> None:
    with advisory_lock("over", using="memory", timeout=1):
        row = row_of("memory", "over")
    answer = boss.post(BREAK, {"lock": row.pk})
    assert "is no longer held; nothing was broken" in told(answer)[0]
    assert boss.get(address(row)).status_code == 404
    for nonsense in ("", "x", "memory/x", "no-such-alias/key/0", "memory/" + "k" * 5000 + "/0"):
        assert boss.post(BREAK, {"lock": nonsense}).status_code == 302
        assert boss.get(f"{LIST}{nonsense.replace('/', '_2F') or '-'}/change/").status_code == 404


def test_several_at_once(boss: Client) -> None:
    leases = []
    with suppress(LockLost), ExitStack() as stack:
        for number in range(7):
            lease = stack.enter_context(advisory_lock(f"many{number}", using="memory", timeout=1))
            leases.append(lease)
        pks = [row_of("memory", f"many{number}").pk for number in range(6)]
        answer = boss.post(LIST, {"action": "break_selected", "index": "0", "_selected_action": pks})
        assert "Break these locks?" in answer.text
        assert answer.text.count('name="lock"') == 6
        assert not any(lease.lost for lease in leases)
        answer = boss.post(BREAK, {"lock": pks})
        assert told(answer) == ["6 locks were broken."]
        assert [lease.lost for lease in leases] == [True] * 6 + [False]
    assert LogEntry.objects.count() == 6


def test_never_more_at_once_than_one_can_read(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaking, "MOST", 2)
    with ExitStack() as stack:
        for number in range(3):
            stack.enter_context(advisory_lock(f"most{number}", using="memory", timeout=1))
        one = row_of("memory", "most0").pk
        answer = boss.post(
            LIST, {"action": "break_selected", "index": "0", "_selected_action": one, "select_across": "1"}
        )
        assert answer.status_code == 302
        assert told(answer) == ["At most 2 locks can be broken at once."]


def test_the_way_back_leads_to_the_list_and_nowhere_else(boss: Client) -> None:
    with advisory_lock("back", using="memory", timeout=1):
        row = row_of("memory", "back")
        listed = boss.get(f"{LIST}?q=back&o=1").text
        assert "_changelist_filters=q%3Dback%26o%3D1" in listed
        assert f'href="{LIST}?q=back&amp;o=1"' in boss.get(f"{address(row)}?_changelist_filters=q%3Dback%26o%3D1").text
        for hostile in (
            "//evil.example/",
            "https://evil.example/",
            "javascript:alert(1)",
            "\r\nSet-Cookie: a=b",
            "'\">",
        ):
            asked = {"_changelist_filters": hostile, "next": hostile}
            for page in (boss.get(address(row), asked), boss.get(address(row, "break"), asked)):
                links = re.findall(r'(?:href|action)="([^"]*)"', page.text)
                assert all(link.startswith(("/admin/", "/static/", "/", "#")) for link in links), links
                assert not any(link.startswith("//") for link in links)
            answer = boss.post(f"{BREAK}?{urlencode(asked)}", {"next": hostile})
            assert answer.status_code == 302
            assert answer.url.partition("?")[0] == LIST
            assert not set(answer.url) & set("\r\n\"'<> ")


def test_a_session_that_let_go_and_came_back_is_another_holding() -> None:
    """Where a lock belongs to a database session, only the time tells; it is known a moment after the start."""
    start = datetime(2026, 1, 1, tzinfo=UTC)

    def held(seconds: float | None, looked: float = 100.0) -> LockRow:
        since = None if seconds is None else start + timedelta(seconds=seconds)
        info = LockInfo(backend="a", key="1", acquired_at=since, details={"pid": "7"})
        report = BackendReport(alias="a", backend="AdvisoryBackend", breakable=True)
        return LockRow(info, report, start + timedelta(seconds=looked))

    for shown, now, same in [
        (held(50), held(50.2), True),
        (held(50), held(52), False),
        (held(None), held(99), True),  # it had been held when one looked, and now one knows since when
        (held(None), held(101), False),
        (held(None), held(None), True),
    ]:
        assert shown.pk == now.pk
        pk, mark, stamp = seen(shown.seen)
        assert pk == shown.pk
        assert now.is_still(mark, stamp) is same
    assert seen("x?y") == ("x?y", "?", float("inf"))


def test_another_holding_of_the_same_session_is_not_broken(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page asks the row, with what its form has sent back."""
    asked = []

    def is_still(row: LockRow, mark: str, stamp: float) -> bool:
        asked.append((row.pk, mark, stamp))
        return False

    monkeypatch.setattr(LockRow, "is_still", is_still)
    with advisory_lock("again", using="memory", timeout=1) as lease:
        row = row_of("memory", "again")
        answer = boss.post(BREAK, {"lock": row.seen})
        assert told(answer) == ["The lock “again” has changed hands; it was not broken."]
        lease.ensure_held()
    assert asked == [seen(row.seen)]
    assert not LogEntry.objects.exists()


class Unbreakable(MemoryBackend):
    """A backend of somebody else's that cannot take a lock away."""

    supports_break = False


def test_what_cannot_be_broken_has_no_button_and_says_so_if_asked(boss: Client) -> None:
    with (
        override_settings(DISTLOCK={"firm": {"BACKEND": f"{__name__}.Unbreakable"}}),
        advisory_lock("kept", using="firm", timeout=1) as lease,
    ):
        row = row_of("firm", "kept")
        listed = boss.get(LIST).text
        assert "kept" in listed
        assert f'value="{row.pk}"' not in listed
        assert "Break this lock" not in boss.get(address(row)).text
        asked = boss.get(address(row, "break")).text
        assert "These cannot be broken and are left out" in asked
        assert 'name="lock"' not in asked
        assert told(boss.post(BREAK, {"lock": row.seen})) == ["The lock “kept” cannot be broken here."]
        lease.ensure_held()
    assert not LogEntry.objects.exists()
