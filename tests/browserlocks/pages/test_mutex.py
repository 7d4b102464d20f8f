"""The mutex on shared memory: nobody is lost, nobody waits in vain, and workers end at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.support.browsers import OTHER_NAME

if TYPE_CHECKING:
    from .conftest import Person, Room

pytestmark = pytest.mark.tier2
PATIENCE = 90.0  # seconds, for eight workers on a busy machine
HANDS, TIMES = 8, 100_000
EIGHT = f"for (let i = 0; i < {HANDS}; i += 1) await table.hand();"
TWO = "const [ada, bo] = [await table.hand(), await table.hand()];"
RUN = """
window.answer = null;
const table = window.table;
(async () => { %s })().then(
  (value) => (window.answer = { value }),
  (error) => (window.answer = { error: `${error.name}: ${error.message}` }),
);
"""


class Page:
    """The page in which the hands work."""

    def __init__(self, tab: Room) -> None:
        self.tab = tab

    def answer(self, code: str) -> dict[str, Any]:
        self.tab.run(RUN % code)
        found: dict[str, Any] = self.tab.until(
            lambda: self.tab.run("return window.answer"), f"no answer to {code}", PATIENCE
        )
        return found

    def ask(self, code: str) -> Any:
        """Run JavaScript that may wait; what it returns. An exception is a failure of the test."""
        answer = self.answer(code)
        assert "error" not in answer, answer["error"]
        return answer.get("value")

    def error(self, code: str) -> str:
        return str(self.answer(code)["error"])


@pytest.fixture
def table(ada: Person) -> Page:
    """A page that is isolated, with a new mutex and no hands."""
    page = Page(ada.open("/isolated/"))
    page.ask(Path(__file__).with_name("table.js").read_text())
    return page


@pytest.mark.everywhere
def test_eight_workers_lose_no_increment(table: Page) -> None:
    """Each counts with work inside the section. Without the mutex the same count loses most of them."""
    naive, counted, overlaps = table.ask(
        f"{EIGHT} await table.all('count', {{ times: {TIMES}, naively: true }});"
        "const naive = table.memory[0]; table.memory[0] = 0;"
        f"await table.all('count', {{ times: {TIMES} }});"
        "return [naive, table.memory[0], table.memory[2]]"
    )
    assert naive < HANDS * TIMES
    assert (counted, overlaps) == (HANDS * TIMES, 0)


def test_a_worker_waits_no_longer_than_it_says(table: Page) -> None:
    assert table.ask(
        f"{TWO} await ada.ask('hold'); const began = performance.now();"
        "const got = [await bo.ask('tryLock', {timeout: 0}), await bo.ask('tryLock', {timeout: 200})];"
        "return [...got, performance.now() - began >= 195]"
    ) == [False, False, True]
    assert table.error("await table.hands[1].ask('lock', {timeout: 50})") == (
        "Error: LockTimeoutError: The mutex was not free within 50 ms."
    )
    assert table.ask("const [ada, bo] = table.hands; await ada.ask('unlock'); return bo.ask('tryLock', {timeout: 0})")


def test_the_mutex_is_handed_over_in_the_order_of_asking(table: Page) -> None:
    """One that was terminated while it waited is passed over."""
    assert table.ask(
        f"{EIGHT} const [first, gone, ...others] = table.hands; await first.ask('hold'); gone.ask('section');"
        "await table.until(() => table.waiting() === 1); const places = [];"
        "for (const hand of others) {"
        "  places.push(hand.ask('place')); await table.until(() => table.waiting() === 1 + places.length); }"
        "gone.worker.terminate(); await table.until(() => table.waiting() === places.length);"
        "await first.ask('unlock');"
        "return [await Promise.all(places), await table.mutex.withLockAsync((lock) => lock.abandoned)]"
    ) == [list(range(HANDS - 2)), False]


def test_a_waiter_that_gave_up_is_passed_over(table: Page) -> None:
    """Its ticket is the lowest one, and nobody hands it the mutex."""
    assert table.ask(
        f"{TWO} const cy = await table.hand(); await ada.ask('hold');"
        "const late = bo.ask('tryLock', {timeout: 300}); await table.until(() => table.waiting());"
        "const next = cy.ask('section'); const got = await late; await ada.ask('unlock');"
        "return [got, await next, await bo.ask('section'), table.memory[2]]"
    ) == [False, [False, 0], [False, 0], 0]


def test_wrong_use_is_an_error_and_no_deadlock(table: Page) -> None:
    table.ask("await table.hand()")
    assert "unlock() without lock()" in table.error("await table.hands[0].ask('unlock')")
    table.ask("await table.hands[0].ask('hold')")
    assert "would wait for itself" in table.error("await table.hands[0].ask('lock', {timeout: 1000})")
    assert table.ask("return table.hands[0].ask('tryLock', {timeout: 0})") is False
    assert "RangeError: of the section" in table.error(
        "const bo = await table.hand(); await table.hands[0].ask('unlock'); await bo.ask('raise')"
    )
    assert table.ask("return table.hands[0].ask('section')") == [False, 0]
    for code in ("table.mutex.lock()", "table.mutex.withLock(() => 0)"):
        assert "must not block" in table.error(code)
    assert "create() has made" in table.error("await table.WorkerMutex.join(new SharedArrayBuffer(4096))")


def test_a_promise_is_awaited_inside_the_section(table: Page) -> None:
    assert table.ask(
        f"{TWO} const first = ada.ask('promise'); await table.until(() => Atomics.load(table.memory, 8));"
        "const got = await bo.ask('tryLock', {timeout: 0}); Atomics.store(table.memory, 9, 1);"
        "return [got, await first, await bo.ask('section')]"
    ) == [False, "settled", [False, 0]]


def test_there_are_as_many_places_as_were_asked_for(table: Page) -> None:
    table.ask("table.begin({ members: 2 }); await table.hand(); await table.hand()")
    assert "All places" in table.error("await table.hand()")
    table.ask(  # the browser gives the Web Lock of the place back a little later
        "await table.hands[0].ask('close');"
        "for (;;) try { await table.hand(); return; } catch (error) {"
        "  if (!error.message.includes('All places')) throw error; await table.sleep(20); }"
    )
    for wrong in ("0", "255", "NaN"):
        assert "between 1 and 254" in table.error(f"table.begin({{ members: {wrong} }})")


# pages


@pytest.mark.parametrize("polling", [False, True])
def test_a_page_waits_without_blocking(table: Page, polling: bool) -> None:
    """Also in a browser without Atomics.waitAsync."""
    ticks, guarantee = table.ask(
        f"if ({str(polling).lower()}) delete Atomics.waitAsync;"
        "const ada = await table.hand(); await ada.ask('hold'); let ticks = 0;"
        "const clock = setInterval(() => { if ((ticks += 1) === 10) ada.ask('unlock'); }, 10);"
        "const guarantee = await table.mutex.withLockAsync((lock) => lock.guarantee);"
        "clearInterval(clock); return [ticks, guarantee]"
    )
    assert ticks >= 10
    assert guarantee == "shared-memory"


def test_tasks_of_a_page_take_turns_with_workers(table: Page) -> None:
    assert table.ask(
        f"{TWO} const workers = table.all('count', {{ times: 2000 }});"
        "const own = async () => { for (let i = 0; i < 50; i += 1) await table.mutex.withLockAsync(async () => {"
        "  if (Atomics.add(table.memory, 1, 1)) table.memory[2] += 1; const seen = table.memory[0];"
        "  await table.sleep(0); table.memory[0] = seen + 1; Atomics.sub(table.memory, 1, 1); }) };"
        "await Promise.all([own(), own(), own(), workers]); return [table.memory[0], table.memory[2]]"
    ) == [4150, 0]


def test_a_page_gives_up_waiting(table: Page) -> None:
    """By its timeout, by a signal, and while it waits for another task of its own."""
    assert table.ask(
        "const ada = await table.hand(); await ada.ask('hold'); const stop = new AbortController();"
        "const gone = (options) => table.mutex.lockAsync(options).catch((error) => error.name);"
        "const [first, second, third] = [{signal: stop.signal}, {timeout: 50}, {signal: stop.signal}].map(gone);"
        "const inLine = table.mutex.tryLock(); const late = await second; stop.abort();"
        "const stopped = [await first, await third]; await ada.ask('unlock');"
        "const free = table.mutex.tryLock(); table.mutex.unlock();"
        "return [inLine, late, ...stopped, free, await ada.ask('section')]"
    ) == [False, "LockTimeoutError", "AbortError", "AbortError", True, [False, 0]]


# workers that end


@pytest.mark.everywhere
def test_a_worker_that_is_terminated_inside_gives_the_mutex_back(table: Page) -> None:
    """The next one learns that the work inside was not finished; the one after that has nothing to worry about. Before
    that a worker that computes for long keeps the mutex: there is no lease and no heartbeat."""
    early, beats, later, told = table.ask(
        f"{TWO} ada.ask('holdForEver'); await table.until(() => Atomics.load(table.memory, 5));"
        "const early = await bo.ask('tryLock', { timeout: 1500 }); const waiting = bo.ask('section');"
        "await table.until(() => table.waiting()); ada.worker.terminate();"
        "const told = [await waiting, await bo.ask('section')];"
        "const beats = table.memory[5]; await table.sleep(100); return [early, beats, table.memory[5], told]"
    )
    assert early is False
    assert 0 < beats == later
    assert told == [[True, 0], [False, 0]]


@pytest.mark.everywhere
def test_the_mutex_is_not_given_away_while_an_ended_worker_still_runs(table: Page) -> None:
    """``self.close()`` lets the running task finish."""
    _, others = table.ask(
        f"{TWO} ada.ask('closeInside', {{ ms: 800 }}); await table.until(() => Atomics.load(table.memory, 1));"
        "return bo.ask('section', {timeout: 10000})"
    )
    assert others == 0


@pytest.mark.everywhere
def test_workers_end_at_any_moment(table: Page) -> None:
    """At whatever instruction they are stopped, the others go on and exclude each other."""
    assert table.ask(
        f"{TWO}"
        "for (let round = 0; round < 12; round += 1) {"
        "  const victims = [await table.hand(), await table.hand()];"
        "  table.hands.length = 2;"
        "  for (const victim of victims) victim.ask('spin');"
        "  const work = table.all('count', { times: 300 });"
        "  await table.sleep(Math.random() * 20);"
        "  for (const victim of victims) victim.worker.terminate();"
        "  await work;"
        "}"
        "return [table.memory[0], table.memory[2]]"
    ) == [12 * 600, 0]


# what pages and scripts must be served with, and what is said when they are not
CREATE = "const { WorkerMutex } = await import('/distlock-worker.js'); WorkerMutex.create()"
CURES = (
    "IsolationError: This page may not share memory with workers.",
    "Cross-Origin-Opener-Policy: same-origin",
    "Cross-Origin-Embedder-Policy: require-corp",
    "SECURE_CROSS_ORIGIN_OPENER_POLICY",
)


def test_a_page_that_may_not_share_memory_names_the_cure(ada: Person) -> None:
    page = Page(ada.open("/isolated/?opener=unsafe-none"))
    assert [cure for cure in CURES if cure not in page.error(CREATE)] == []
    page.tab.open(f"{ada.url}/isolated/?embedder=unsafe-none")
    assert [cure for cure in CURES if cure not in page.error(CREATE)] == []
    page.tab.open(f"{ada.url}/isolated/")  # as does GTK's MiniBrowser, which says that a page is isolated
    assert "This browser shares no memory" in page.error(f"delete globalThis.SharedArrayBuffer; {CREATE}")
    page.tab.open(f"http://{OTHER_NAME}:{urlsplit(ada.url).port}/isolated/")  # http on a LAN
    assert "secure contexts only: serve this page over HTTPS" in page.error(CREATE)


@pytest.mark.everywhere
def test_a_script_without_its_header_is_found(table: Page) -> None:
    """The browser starts no such worker, and gives no reason."""
    check = "await table.checkWorkerScript('%s')"
    table.ask(check % "/hand.js")
    assert table.ask(
        "return new Promise((resolve) => {"
        "  const worker = new Worker('/hand.js?bare', { type: 'module' });"
        "  worker.onerror = (event) => resolve(event.message ?? '');"
        "})"
    ) in ("", None)
    for url, said in (
        ("/hand.js?bare", "/hand.js?bare is served without Cross-Origin-Embedder-Policy: require-corp"),
        ("/nowhere/", "is answered with 404"),
        ("/elsewhere/", "not as JavaScript"),
        ("https://cdn.example/hand.js", "is on another origin: serve"),
    ):
        assert said in table.error(check % url)
