"""The mutex on shared memory: nobody is lost, nobody waits in vain, and workers end at any moment."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support.browsers import OTHER_NAME

if TYPE_CHECKING:
    from .conftest import Table

pytestmark = pytest.mark.tier2
HANDS, TIMES = 8, 100_000
EIGHT = f"for (let i = 0; i < {HANDS}; i += 1) await table.hand();"
TWO = "const [ada, bo] = [await table.hand(), await table.hand()];"


@pytest.mark.everywhere
def test_eight_workers_lose_no_increment(table: Table) -> None:
    """Each counts with work inside the section. Without the mutex the same count loses most of them."""
    naive, counted, overlaps = table.ask(
        f"{EIGHT} await table.all('count', {{ times: {TIMES}, naively: true }});"
        "const naive = table.memory[0]; table.memory[0] = 0;"
        f"await table.all('count', {{ times: {TIMES} }});"
        "return [naive, table.memory[0], table.memory[2]]"
    )
    assert naive < HANDS * TIMES
    assert (counted, overlaps) == (HANDS * TIMES, 0)


def test_a_worker_waits_no_longer_than_it_says(table: Table) -> None:
    assert table.ask(
        f"{TWO} await ada.ask('hold'); const began = performance.now();"
        "const got = [await bo.ask('tryLock', {timeout: 0}), await bo.ask('tryLock', {timeout: 200})];"
        "return [...got, performance.now() - began >= 195]"
    ) == [False, False, True]
    assert table.error("await table.hands[1].ask('lock', {timeout: 50})") == (
        "Error: LockTimeoutError: The mutex was not free within 50 ms."
    )
    assert table.ask("const [ada, bo] = table.hands; await ada.ask('unlock'); return bo.ask('tryLock', {timeout: 0})")


def test_the_mutex_is_handed_over_in_the_order_of_asking(table: Table) -> None:
    """One that was terminated while it waited is passed over."""
    assert table.ask(
        f"{EIGHT} const [first, gone, ...others] = table.hands; await first.ask('hold'); gone.ask('section');"
        "while (table.waiting() < 1) await table.sleep(1); const places = [];"
        "for (const hand of others) {"
        "  places.push(hand.ask('place')); while (table.waiting() < 1 + places.length) await table.sleep(1); }"
        "gone.worker.terminate(); while (table.waiting() > places.length) await table.sleep(5);"
        "await first.ask('unlock');"
        "return [await Promise.all(places), await table.mutex.withLockAsync((lock) => lock.abandoned)]"
    ) == [list(range(HANDS - 2)), False]


def test_a_waiter_that_gave_up_is_passed_over(table: Table) -> None:
    """Its ticket is the lowest one, and nobody hands it the mutex."""
    assert table.ask(
        f"{TWO} const cy = await table.hand(); await ada.ask('hold');"
        "const late = bo.ask('tryLock', {timeout: 300}); while (table.waiting() < 1) await table.sleep(1);"
        "const next = cy.ask('section'); const got = await late; await ada.ask('unlock');"
        "return [got, await next, await bo.ask('section'), table.memory[2]]"
    ) == [False, False, False, 0]


def test_wrong_use_is_an_error_and_no_deadlock(table: Table) -> None:
    table.ask("await table.hand()")
    assert "unlock() without lock()" in table.error("await table.hands[0].ask('unlock')")
    table.ask("await table.hands[0].ask('hold')")
    assert "would wait for itself" in table.error("await table.hands[0].ask('lock', {timeout: 1000})")
    assert table.ask("return table.hands[0].ask('tryLock', {timeout: 0})") is False
    assert "RangeError: of the section" in table.error(
        "const bo = await table.hand(); await table.hands[0].ask('unlock'); await bo.ask('raise')"
    )
    assert table.ask("return table.hands[0].ask('section')") is False
    assert "must not block" in table.error("table.mutex.lock()")
    assert "must not block" in table.error("table.mutex.withLock(() => 0)")
    assert "create() has made" in table.error("await table.WorkerMutex.join(new SharedArrayBuffer(4096))")


def test_a_promise_is_awaited_inside_the_section(table: Table) -> None:
    assert table.ask(
        f"{TWO} const first = ada.ask('promise'); while (!Atomics.load(table.memory, 8)) await table.sleep(1);"
        "const got = await bo.ask('tryLock', {timeout: 0}); Atomics.store(table.memory, 9, 1);"
        "return [got, await first, await bo.ask('section')]"
    ) == [False, "settled", False]


def test_there_are_as_many_places_as_were_asked_for(table: Table) -> None:
    table.ask("table.clear({ members: 2 }); await table.hand(); await table.hand()")
    assert "All places" in table.error("await table.hand()")
    table.ask(  # the browser gives the Web Lock of the place back a little later
        "await table.hands[0].ask('close');"
        "for (;;) try { await table.hand(); return; } catch (error) {"
        "  if (!error.message.includes('All places')) throw error; await table.sleep(20); }"
    )
    for wrong in ("0", "255", "NaN"):
        assert "between 1 and 254" in table.error(f"table.WorkerMutex.create({{ members: {wrong} }})")


# pages


@pytest.mark.parametrize("polling", [False, True])
def test_a_page_waits_without_blocking(table: Table, polling: bool) -> None:
    """Also in a browser without Atomics.waitAsync."""
    if polling:
        table.ask("delete Atomics.waitAsync")
    ticks, guarantee = table.ask(
        "const ada = await table.hand(); await ada.ask('hold'); let ticks = 0;"
        "const clock = setInterval(() => { if ((ticks += 1) === 10) ada.ask('unlock'); }, 10);"
        "const guarantee = await table.mutex.withLockAsync((lock) => lock.guarantee);"
        "clearInterval(clock); return [ticks, guarantee]"
    )
    assert ticks >= 10
    assert guarantee == "shared-memory"


def test_tasks_of_a_page_take_turns_with_workers(table: Table) -> None:
    assert table.ask(
        f"{TWO} const workers = table.all('count', {{ times: 2000 }});"
        "const own = async () => { for (let i = 0; i < 50; i += 1) await table.mutex.withLockAsync(async () => {"
        "  if (Atomics.add(table.memory, 1, 1)) table.memory[2] += 1; const seen = table.memory[0];"
        "  await table.sleep(0); table.memory[0] = seen + 1; Atomics.sub(table.memory, 1, 1); }) };"
        "await Promise.all([own(), own(), own(), workers]); return [table.memory[0], table.memory[2]]"
    ) == [4150, 0]


def test_a_page_gives_up_waiting(table: Table) -> None:
    """By its timeout, by a signal, and while it waits for another task of its own."""
    assert table.ask(
        "const ada = await table.hand(); await ada.ask('hold'); const stop = new AbortController();"
        "const name = (error) => error.name;"
        "const first = table.mutex.lockAsync({ signal: stop.signal }).catch(name);"
        "const second = table.mutex.lockAsync({ timeout: 50 }).catch(name);"
        "const third = table.mutex.lockAsync({ signal: stop.signal }).catch(name);"
        "const inLine = table.mutex.tryLock(); const late = await second; stop.abort();"
        "const gone = [await first, await third]; await ada.ask('unlock');"
        "const free = table.mutex.tryLock(); table.mutex.unlock();"
        "return [inLine, late, ...gone, free, await ada.ask('section')]"
    ) == [False, "LockTimeoutError", "AbortError", "AbortError", True, False]


# workers that end


@pytest.mark.everywhere
def test_a_worker_that_is_terminated_inside_gives_the_mutex_back(table: Table) -> None:
    """The next one learns that the work inside was not finished; the one after that has nothing to worry about. Before
    that a worker that computes for long keeps the mutex: there is no lease and no heartbeat."""
    early, beats, later, told = table.ask(
        f"{TWO} ada.ask('holdForEver'); while (!Atomics.load(table.memory, 5)) await table.sleep(1);"
        "const early = await bo.ask('tryLock', { timeout: 1500 }); const waiting = bo.ask('section');"
        "while (table.waiting() < 1) await table.sleep(1); ada.worker.terminate();"
        "const told = [await waiting, await bo.ask('section')];"
        "const beats = table.memory[5]; await table.sleep(100); return [early, beats, table.memory[5], told]"
    )
    assert early is False
    assert 0 < beats == later
    assert told == [True, False]


@pytest.mark.everywhere
def test_the_mutex_is_not_given_away_while_an_ended_worker_still_runs(table: Table) -> None:
    """``self.close()`` lets the running task finish."""
    others = table.ask(
        f"{TWO} ada.ask('closeInside', {{ ms: 800 }}); while (!Atomics.load(table.memory, 1)) await table.sleep(1);"
        "return bo.ask('inside', {timeout: 10000})"
    )
    assert others == 0


@pytest.mark.everywhere
def test_workers_end_at_any_moment(table: Table) -> None:
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
CHECK = "const { checkWorkerScript } = await import('/distlock-worker.js'); await checkWorkerScript('%s')"


def test_a_page_that_may_not_share_memory_names_the_cure(opened: Table) -> None:
    for path in ("/without-embedder/", "/without-opener/"):
        opened.open(path)
        said = opened.error(CREATE)
        assert said.startswith("IsolationError: This page may not share memory with workers.")
        for cure in (
            "Cross-Origin-Opener-Policy: same-origin",
            "Cross-Origin-Embedder-Policy: require-corp",
            "SECURE_CROSS_ORIGIN_OPENER_POLICY",
        ):
            assert cure in said
    opened.open("/isolated/")  # as does GTK's MiniBrowser, which says that a page is isolated
    assert "This browser shares no memory" in opened.error(f"delete globalThis.SharedArrayBuffer; {CREATE}")
    opened.tab.open(f"http://{OTHER_NAME}:{urlsplit(opened.url).port}/isolated/")  # http on a LAN
    assert "secure contexts only: serve this page over HTTPS" in opened.error(CREATE)


@pytest.mark.everywhere
def test_a_script_without_its_header_is_found(table: Table) -> None:
    """The browser starts no such worker, and gives no reason."""
    table.ask(CHECK % "/hand.js")
    assert table.ask(
        "return new Promise((resolve) => {"
        "  const worker = new Worker('/hand-without-embedder.js', { type: 'module' });"
        "  worker.onerror = (event) => resolve(event.message ?? '');"
        "})"
    ) in ("", None)
    said = table.error(CHECK % "/hand-without-embedder.js")
    assert "/hand-without-embedder.js is served without Cross-Origin-Embedder-Policy: require-corp" in said
    assert "is answered with 404" in table.error(CHECK % "/nowhere.js")
    assert "not as JavaScript" in table.error(CHECK % "/without-opener/")
    assert "is on another origin: serve" in table.error(CHECK % "https://cdn.example/hand.js")
