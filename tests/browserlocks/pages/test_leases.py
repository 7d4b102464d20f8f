"""Locks of the server in browsers: tabs, people, queues, and pages that go and come back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.browserlocks.ledger import ledger
from tests.browserlocks.people import LEASES, holder_of
from tests.conftest import eventually
from tests.support.wire import wire

from .conftest import TTL

if TYPE_CHECKING:
    from .conftest import Person, Room

pytestmark = pytest.mark.tier2


@pytest.mark.everywhere
def test_two_tabs_and_two_people_are_never_inside_at_once(ada: Person, bo: Person) -> None:
    rooms = [ada.room("who=a1"), ada.room("who=a2"), bo.room("who=b1")]
    for room in rooms:
        room.run("window.over = false; race(8).then(() => (window.over = true), (e) => (window.over = String(e)))")
    for room in rooms:
        assert room.until(lambda r=room: r.run("return window.over"), "the sections do not end", 60) is True
    assert len(ledger.entered) == 24
    ledger.check()


def test_options(ada: Person, bo: Person) -> None:
    """Who gives up waiting gives the place back."""
    mine, theirs = ada.room().hold("mine"), bo.room()
    theirs.take("try", ifAvailable=True)
    theirs.until_state("try", "null")
    theirs.take("late", timeout=3000)  # long enough for an answer that names the holder
    theirs.until_end("late", "LockTimeoutError: timeout")
    message = theirs.about("late")["message"]
    assert [part in message for part in ("within 3000 ms", "Ada has it", "option timeout")] == [True] * 3
    theirs.run("window.stop = new AbortController(); take('stopped', { signal: stop.signal })")
    theirs.until(theirs.has_a_place, "no place")
    theirs.run("stop.abort(new Error('enough'))")
    theirs.until_end("stopped", "Error: enough")
    theirs.wait("next")
    mine.finish("mine")
    theirs.until_state("next", "held")
    theirs.finish("next")
    theirs.until_end("next", "ended")
    mine.hold("again", ifAvailable=True)


def test_what_a_lock_says_of_itself(ada: Person) -> None:
    tab = ada.room()
    said = tab.ask(
        "const [done] = arguments;"
        "locks.hold(grant).then(async (lock) => {"
        "  const {guarantee, id, fence, expiresIn, headers, signal, name} = lock;"
        "  const {held: [held]} = await locks.query();"
        "  await lock.release(); await lock.release();"
        "  const ended = [signal.aborted, lock.expiresIn];"
        "  done({guarantee, id, fence, expiresIn, headers, name, ended, held}); });"
    )
    assert (said["guarantee"], said["ended"]) == ("lease", [False, 0])
    assert said["headers"] == {"Distlock-Lease": f"{said['id']};{said['fence']}"}
    assert 0 < said["expiresIn"] <= TTL * 1000
    assert [said["held"][key] for key in ("id", "name", "fence")] == [said["id"], "cart", said["fence"]]
    thrown = "locks.request(grant, () => { throw new RangeError('mine'); }).catch((e) => arguments[0](String(e)))"
    assert tab.ask(thrown) == "RangeError: mine"
    assert not holder_of()


def test_news_that_comes_during_a_question_is_not_lost(ada: Person, bo: Person, monkeypatch: Any) -> None:
    """It may be newer than the answer, so the tab asks again at once. Naive code asks when a hidden tab would."""
    monkeypatch.setattr("django_distlock.browser.endpoints.HIDDEN_HEAD", 60.0)  # naive code is far later
    bo.room().hold("theirs")
    mine = ada.room("hidden")
    mine.run("Object.defineProperty(document, 'visibilityState', { value: 'hidden' })")
    with wire.held_back(lambda request: request.method == "POST" and request.path == LEASES):
        mine.take("mine")
        mine.until(lambda: wire.held > 0, "it does not ask")
        mine.run("dispatchEvent(new Event('online'))")
    # the page is not touched meanwhile: focus is news, too
    eventually(lambda: [user for user, path in wire.seen if path == LEASES][-2:] == ["ada"] * 2, "it sleeps")


@pytest.mark.everywhere
@pytest.mark.parametrize("leave", ["close", "navigate"])
def test_a_page_that_goes_gives_its_lease_and_its_place_back(ada: Person, bo: Person, leave: str) -> None:
    mine, between, theirs = ada.room().hold("mine"), ada.room().wait("between"), bo.room().wait("theirs")
    for tab in (between, mine):
        tab.close() if leave == "close" else tab.open(f"{ada.url}/elsewhere/")
    theirs.until_state("theirs", "held")
    told = sum(path.endswith("/release/") for _, path in wire.seen)
    assert told >= 2 or leave == "close"  # a browser may lose the last request of a page that is closed


@pytest.mark.everywhere
def test_back_from_another_page(ada: Person, bo: Person) -> None:
    """The lock was given back when the page was left. If the page has stayed in memory, its section knows so; one that
    waited goes on waiting."""
    mine, theirs = ada.room().hold("mine").wait("waiting"), bo.room()
    mine.run("document.querySelector('a').click()")
    theirs.hold("theirs")
    if mine.back_again():
        mine.until_end("mine", "LockLostError: page")
        assert (mine.state("mine"), mine.state("waiting")) == ("lost: page", "waiting")
        assert mine.run("return sections.mine.lock.expiresIn") == 0
    else:
        mine.take("waiting")
    theirs.finish("theirs")
    mine.until_state("waiting", "held")


@pytest.mark.everywhere
@pytest.mark.parametrize("scope", ["server", "browser"])
def test_a_page_with_a_lock_stays_in_the_back_forward_cache(ada: Person, scope: str, request: Any) -> None:
    """So that "back" is quick. Firefox looks for Web Locks before pagehide, and keeps no page that has one then; nor
    one that has just sent a request, so each page has three tries."""
    mine = ada.room()
    kept = any(_is_kept(mine, scope) for _ in range(3))
    assert kept is not (request.node.callspec.params["people"] == "firefox" and scope == "browser")


def _is_kept(mine: Room, scope: str) -> bool:
    mine.hold("mine", scope=scope)
    time.sleep(1)
    if scope == "server":  # the lead of the event stream is a Web Lock; here there is no stream, so that it ends
        locks = "navigator.locks.query().then(({held, pending}) => arguments[0](held.length + pending.length))"
        mine.until(lambda: mine.ask(locks) == 0, "a tab goes on to lead")
    mine.leave()
    return mine.back_again()


# which stream of events a tab keeps: streams that do nothing by themselves, and Web Locks that come back late
FAKES = """
Object.defineProperty(document, "visibilityState", { value: "hidden" });
window.streams = [];
window.EventSource = class extends EventTarget {
  static CLOSED = 2;
  readyState = 0;
  constructor(url) {
    super();
    this.url = url;
    streams.push(this);
  }
  close() {
    this.readyState = 2;
  }
};
const request = navigator.locks.request.bind(navigator.locks);
navigator.locks.request = (...asked) => request(...asked).finally(() => new Promise((after) => setTimeout(after, 500)));
"""


@pytest.fixture
def hidden(ada: Person, bo: Person) -> Room:
    """Ada's hidden tab, whose own questions are seconds apart; Bo has the lock."""
    bo.room().hold("theirs")
    room = ada.room("hidden")
    room.run(FAKES)
    return room


def states(room: Room) -> list[int]:
    """Of its streams: 2 is closed."""
    return list(room.run("return streams.map(({ readyState }) => readyState)"))


def waits_with(room: Room, who: str, number: int) -> None:
    """A further waiter, and the stream of that number for all of them."""
    room.run("window.giveUp = new AbortController(); take(arguments[0], { signal: giveUp.signal })", who)
    room.until(lambda: len(states(room)) == number, lambda: f"{states(room)} streams")


def test_an_older_stream_that_opens_late_does_not_close_the_newer_one(hidden: Room) -> None:
    """Naive code keeps the one that opened last: nobody then watches for the second waiter."""
    waits_with(hidden, "first", 1)
    waits_with(hidden, "second", 2)
    hidden.run("streams[0].onopen()")
    assert states(hidden) == [0, 0]
    hidden.run("streams[1].onopen()")
    assert states(hidden) == [2, 0]


def test_a_tab_that_has_just_given_up_the_lead_takes_it_again(hidden: Room) -> None:
    """The browser takes its time to free the Web Lock of the lead, and the tab waits for something again meanwhile."""
    waits_with(hidden, "first", 1)
    hidden.run("giveUp.abort()")
    hidden.until(lambda: states(hidden) == [2], "the stream is not closed")
    waits_with(hidden, "second", 2)


REFUSED = """
const [grant, endpoint, options, done] = arguments;
import('/static/django_distlock/distlock.js')
  .then(({LockManager}) => new LockManager({endpoint}).request(grant ?? window.grant, options, () => {}))
  .catch(({name, reason, message}) => done(`${name}: ${reason}: ${message}`));
"""


def test_refusals_name_the_cure(ada: Person) -> None:
    tab = ada.room()
    for grant, endpoint, options, said in (
        ("forged", "/distlock/", {}, "LockError: grant"),
        (None, "/elsewhere/", {}, "LockError: endpoint"),
        (None, "", {}, "endpoint"),
        (None, "/distlock/", {"steal": True}, "option steal"),
        (None, "/distlock/", {"scope": "planet"}, "scope planet"),
    ):
        assert said in tab.ask(REFUSED, grant, endpoint, options)
    with wire.lost(lambda request: request.path.startswith("/distlock/")):
        assert "LockError: unreachable" in tab.ask(REFUSED, None, "/distlock/", {"ifAvailable": True})
