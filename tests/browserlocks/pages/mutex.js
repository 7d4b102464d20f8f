// The cases of the mutex on shared memory, with a page and workers ("hands") that share one.
import { WorkerMutex, checkWorkerScript } from "/distlock-worker.js";

const memory = new Int32Array(new SharedArrayBuffer(64)); // see hand.js
let mutex = WorkerMutex.create();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const until = async (condition) => {
  while (!condition()) await sleep(1);
};
const equal = (found, wanted) => {
  const [one, other] = [found, wanted].map((value) => JSON.stringify(value));
  if (one !== other) throw new Error(`${one} is not ${other}`);
};
const refused = async (work, text) => {
  const said = await (async () => work())().then(() => "no error", (error) => `${error.name}: ${error.message}`);
  if (!said.includes(text)) throw new Error(`${said}, and not ${text}`);
};
// How many wait: the first word of each member's 64 bytes is its ticket, and 0 once it waits no longer.
const waiting = () => new Int32Array(mutex.shared).filter((word, at) => at >= 16 && at % 16 === 0 && word).length;

/* A function that runs code in a new worker. */
const hand = async () => {
  const worker = new Worker("/hand.js", { type: "module" });
  const answers = [];
  worker.onmessage = ({ data: { number, value, error } }) => {
    const { resolve, reject } = answers[number];
    error ? reject(new Error(error)) : resolve(value);
  };
  const run = (code) =>
    new Promise((resolve, reject) => {
      const number = answers.push({ resolve, reject }) - 1;
      worker.postMessage({ number, shared: mutex.shared, words: memory.buffer, code });
    });
  await run("");
  return Object.assign(run, { end: () => worker.terminate() });
};
const hands = async (count) => {
  const found = [];
  while (found.length < count) found.push(await hand());
  return found;
};
const all = (crowd, code) => Promise.all(crowd.map((each) => each(code)));

export const cases = {
  async eight_workers_lose_no_increment() {
    const crowd = await hands(8);
    await all(crowd, "count(100_000, true)");
    if (memory[0] >= 800_000) throw new Error("without the mutex nothing is lost");
    memory[0] = 0;
    await all(crowd, "count(100_000)");
    equal([memory[0], memory[2]], [800_000, 0]);
  },

  // The next one learns that the work was not finished; the one after that has nothing to worry about. Before that a
  // worker that computes for long keeps the mutex: there is no lease and no heartbeat.
  async a_worker_that_is_terminated_inside_gives_the_mutex_back() {
    const [ada, bo] = await hands(2);
    ada("mutex.lock(); for (;;) Atomics.add(memory, 5, 1)");
    await until(() => Atomics.load(memory, 5));
    equal(await bo("return mutex.tryLock(1500)"), false);
    const next = bo("return section()");
    await until(waiting);
    ada.end();
    equal([await next, await bo("return section()")], [[true, 0], [false, 0]]);
    const beats = memory[5];
    await sleep(100);
    equal(memory[5], beats);
  },

  // self.close() lets the running task finish
  async the_mutex_is_not_given_away_while_an_ended_worker_still_runs() {
    const [ada, bo] = await hands(2);
    ada(`mutex.lock(); self.close(); Atomics.add(memory, 1, 1);
      for (const end = performance.now() + 800; performance.now() < end;); Atomics.sub(memory, 1, 1)`);
    await until(() => Atomics.load(memory, 1));
    equal((await bo("return section(10_000)"))[1], 0);
  },

  // at whatever instruction they are stopped, the others go on and exclude each other; the victims touch no memory
  async workers_end_at_any_moment() {
    const crowd = await hands(2);
    for (let round = 0; round < 12; round += 1) {
      const victims = await hands(2);
      for (const victim of victims) victim("for (;;) mutex.withLock(() => 0)");
      const work = all(crowd, "count(300)");
      await sleep(Math.random() * 20);
      for (const victim of victims) victim.end();
      await work;
    }
    equal([memory[0], memory[2]], [12 * 600, 0]);
  },

  // the browser starts no such worker, and gives no reason
  async a_script_without_its_header_is_found() {
    await checkWorkerScript("/hand.js");
    const worker = new Worker("/hand.js?bare", { type: "module" });
    equal(await new Promise((resolve) => (worker.onerror = ({ message }) => resolve(message ?? ""))), "");
    for (const [url, text] of [
      ["/hand.js?bare", "/hand.js?bare is served without Cross-Origin-Embedder-Policy: require-corp"],
      ["/nowhere/", "is answered with 404"],
      ["/elsewhere/", "not as JavaScript"],
      ["https://cdn.example/hand.js", "is on another origin: serve"],
    ])
      await refused(() => checkWorkerScript(url), text);
  },

  async a_worker_waits_no_longer_than_it_says() {
    const [ada, bo] = await hands(2);
    await ada("mutex.lock()");
    const began = performance.now();
    equal([await bo("return mutex.tryLock(0)"), await bo("return mutex.tryLock(200)")], [false, false]);
    if (performance.now() - began < 195) throw new Error("too early");
    await refused(() => bo("mutex.lock(50)"), "LockTimeoutError: The mutex was not free within 50 ms.");
    await ada("mutex.unlock()");
    equal(await bo("return mutex.tryLock(0)"), true);
  },

  // one that was terminated while it waited, and one that gave up, are passed over
  async the_mutex_is_handed_over_in_the_order_of_asking() {
    const [first, gone, late, ...others] = await hands(8);
    await first("mutex.lock()");
    gone("mutex.lock()");
    await until(() => waiting() === 1);
    const gaveUp = late("return mutex.tryLock(300)");
    await until(() => waiting() === 2);
    const places = [others[0]("return mutex.withLock(() => Atomics.add(memory, 6, 1))")];
    equal(await gaveUp, false);
    for (const other of others.slice(1)) {
      places.push(other("return mutex.withLock(() => Atomics.add(memory, 6, 1))"));
      await until(() => waiting() === 1 + places.length);
    }
    gone.end();
    await until(() => waiting() === places.length);
    await first("mutex.unlock()");
    equal(await Promise.all(places), [0, 1, 2, 3, 4]);
    equal([await late("return section()"), await mutex.withLockAsync((lock) => lock.abandoned)], [[false, 0], false]);
  },

  async wrong_use_is_an_error_and_no_deadlock() {
    const [ada, bo] = await hands(2);
    await refused(() => ada("mutex.unlock()"), "unlock() without lock()");
    await ada("mutex.lock()");
    await refused(() => ada("mutex.lock(1000)"), "would wait for itself");
    equal(await ada("return mutex.tryLock(0)"), false);
    await ada("mutex.unlock()");
    await refused(() => bo("mutex.withLock(() => { throw new RangeError('mine') })"), "RangeError: mine");
    equal(await ada("return section()"), [false, 0]);
    await refused(() => mutex.lock(), "must not block");
    await refused(() => mutex.withLock(() => 0), "must not block");
    await refused(() => WorkerMutex.join(new SharedArrayBuffer(4096)), "create() has made");
  },

  async a_promise_is_awaited_inside_the_section() {
    const [ada, bo] = await hands(2);
    const first = ada(`return mutex.withLock(async () => {
      Atomics.store(memory, 8, 1);
      while (!Atomics.load(memory, 9)) await new Promise((resolve) => setTimeout(resolve, 5));
      return "settled";
    })`);
    await until(() => Atomics.load(memory, 8));
    equal(await bo("return mutex.tryLock(0)"), false);
    Atomics.store(memory, 9, 1);
    equal([await first, await bo("return section()")], ["settled", [false, 0]]);
  },

  async there_are_as_many_places_as_were_asked_for() {
    for (const members of [0, 255, NaN]) await refused(() => WorkerMutex.create({ members }), "between 1 and 254");
    mutex = WorkerMutex.create({ members: 2 });
    const [ada] = await hands(2);
    await refused(hand, "All places");
    await ada("mutex.close()");
    let free = false; // the browser gives the Web Lock of the place back a little later
    while (!free) free = await hand().then(() => true, () => sleep(20));
  },

  async a_page_waits_without_blocking() {
    for (const polling of [false, true]) {
      if (polling) delete Atomics.waitAsync; // as in older browsers
      const ada = await hand();
      await ada("mutex.lock()");
      let ticks = 0;
      const clock = setInterval(() => (ticks += 1) === 10 && ada("mutex.unlock()"), 10);
      equal(await mutex.withLockAsync((lock) => lock.guarantee), "shared-memory");
      clearInterval(clock);
      if (ticks < 10) throw new Error("it did not wait");
    }
  },

  async tasks_of_a_page_take_turns_with_workers() {
    const section = async () => {
      if (Atomics.add(memory, 1, 1)) memory[2] += 1;
      const seen = memory[0];
      await sleep(0);
      memory[0] = seen + 1;
      Atomics.sub(memory, 1, 1);
    };
    const own = async () => {
      for (let round = 0; round < 50; round += 1) await mutex.withLockAsync(section);
    };
    await Promise.all([own(), own(), own(), all(await hands(2), "count(2000)")]);
    equal([memory[0], memory[2]], [4150, 0]);
  },

  // by its timeout, by a signal, and while it waits for another task of its own
  async a_page_gives_up_waiting() {
    const ada = await hand();
    await ada("mutex.lock()");
    const stop = new AbortController();
    const ended = (options) => mutex.lockAsync(options).catch(({ name }) => name);
    const [first, second, third] = [{ signal: stop.signal }, { timeout: 50 }, { signal: stop.signal }].map(ended);
    equal([mutex.tryLock(), await second], [false, "LockTimeoutError"]);
    stop.abort();
    equal([await first, await third], ["AbortError", "AbortError"]);
    await ada("mutex.unlock()");
    equal(mutex.tryLock(), true);
    mutex.unlock();
    equal(await ada("return section()"), [false, 0]);
  },
};
