/* A fair mutex between a page and its workers, on shared memory: first come, first served.

   One word decides which thread holds the mutex; tickets only order those that wait. A thread that finds the word free
   writes the member with the lowest ticket into it, so the mutex is handed over and never raced for. The word counts
   its changes in 56 bits, so a decision that was made on an old word comes to nothing.
   Each member of the mutex holds a Web Lock for as long as it lives. The browser gives that back when a worker has
   ended, and only then. The creator of the mutex waits for these Web Locks and takes ended workers out, wherever they
   were stopped: in the queue, inside, or between two instructions of this file. */

const MAGIC = 0x646c6b31;
const MEMBERS = 63; // besides the creator
const MOST_MEMBERS = 254;
const SLICE = 1000; // ms after which a waiter looks by itself: a worker can end between a release and the wake-up
const POLL = 4; // ms between two looks where Atomics.waitAsync is missing
const WATCH_POLL = 250; // the same, for workers that have joined
const LONGEST_TIMER = 2 ** 31 - 1; // ms; a longer one fires at once

// Words of the header; the first two are the owner, as one number of 64 bits: changes << 8 | member.
const [MAGIC_AT, NEXT, HIGHEST, JOINED, ABANDONED, ID] = [2, 3, 4, 5, 6, 8];
const MEMBER = 0xffn;
const CHANGE = 0x100n;
// Words of a member. Each member has 64 bytes, so that no two processors fight for one cache line.
const [TICKET, WAKE, ALIVE] = [0, 1, 2];
const at = (member, word) => 16 * member + word;

const HEADERS =
  "Cross-Origin-Opener-Policy: same-origin (in Django: SecurityMiddleware with " +
  'SECURE_CROSS_ORIGIN_OPENER_POLICY = "same-origin", the default) and Cross-Origin-Embedder-Policy: require-corp ' +
  "(Django has no setting for it: set it on the response)";
const EMBEDDER = /^\s*(require-corp|credentialless)\b/;

/* The mutex was used in a way that cannot work. */
export class MutexError extends Error {
  get name() {
    return this.constructor.name;
  }
}

/* The page or the worker may not share memory. The message names the header that is missing. */
export class IsolationError extends MutexError {}

/* The mutex was not free in time. */
export class LockTimeoutError extends MutexError {}

const onPage = () => typeof document !== "undefined";

/* Throw IsolationError unless this page or worker may share memory. */
export const checkIsolation = () => {
  if (!globalThis.isSecureContext)
    throw new IsolationError("Memory is shared in secure contexts only: serve this page over HTTPS or from localhost.");
  if (!globalThis.crossOriginIsolated)
    throw new IsolationError(
      onPage()
        ? `This page may not share memory with workers. Serve it with ${HEADERS}. In a frame, the pages around it too.`
        : "This worker may not share memory. Serve its page with Cross-Origin-Opener-Policy: same-origin and " +
          "Cross-Origin-Embedder-Policy: require-corp, and the worker's own script with the latter, too.",
    );
  if (!globalThis.SharedArrayBuffer)
    throw new IsolationError("This browser shares no memory: it has no SharedArrayBuffer, with the right headers.");
};

/* Throw IsolationError unless the script of a worker is served as it must be, and this module as well. Browsers refuse
   such a worker without a reason; this asks for both scripts and finds it. */
export const checkWorkerScript = async (url) => {
  checkIsolation();
  for (const script of [new URL(url, document.baseURI), new URL(import.meta.url)]) {
    const refuse = (reason) => {
      throw new IsolationError(`${script} ${reason}`);
    };
    if (script.origin !== location.origin) refuse("is on another origin: serve it from the origin of its page.");
    const answer = await fetch(script);
    if (!answer.ok) refuse(`is answered with ${answer.status}.`);
    const type = answer.headers.get("Content-Type");
    if (!type?.includes("javascript")) refuse(`is served as ${type}, not as JavaScript.`);
    if (!EMBEDDER.test(answer.headers.get("Cross-Origin-Embedder-Policy")))
      refuse(
        "is served without Cross-Origin-Embedder-Policy: require-corp. A worker's own script and the modules that it " +
          "imports need this header as much as the page: set it where static files are served.",
      );
  }
};

const holderOf = (word) => Number(word & MEMBER);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/* Wait without blocking until a word is no longer `seen`, or for some time. */
const changed = async (words, index, seen, ms, poll) =>
  Atomics.waitAsync ? Atomics.waitAsync(words, index, seen, ms).value : sleep(Math.min(ms, poll));

/* The promise, or the reason of an aborted signal. */
const unlessAborted = (promise, signal) =>
  new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort);
    promise.finally(() => signal.removeEventListener("abort", abort)).then(resolve, reject);
  });

/* The Web Lock that a member holds for as long as it lives; the id of the mutex is in its memory. */
const webLockName = (words, member) => `distlock-worker:${words.slice(ID, ID + 4).join(":")}:${member}`;

/* Hold a Web Lock if it is free. Returns the function that gives it back, or null. */
const holdWebLock = (name) =>
  new Promise((resolve, reject) => {
    const hold = (lock) => (lock ? new Promise(resolve) : resolve(null));
    navigator.locks.request(name, { ifAvailable: true }, hold).catch(reject);
  });

export class WorkerMutex {
  /* What a lock of this kind promises. */
  guarantee = "shared-memory";
  /* True while this holds the mutex after a worker that ended inside: what that one was writing may be half done. */
  abandoned = false;

  #words;
  #owner; // the deciding word
  #me;
  #leave; // gives the place of this member back
  #word = null; // what was in the deciding word when this member got the mutex; null: it does not hold it
  #busy = false; // a caller in this thread holds the mutex or waits for it
  #line = []; // the other asynchronous callers in this thread
  #closing = new AbortController();

  /* A new mutex. Its creator notices when workers end, so it must be a thread whose event loop runs: the page. */
  static create({ members = MEMBERS } = {}) {
    checkIsolation();
    if (!Number.isInteger(members) || members < 1 || members > MOST_MEMBERS)
      throw new MutexError(`A mutex has between 1 and ${MOST_MEMBERS} members besides its creator.`);
    const words = new Int32Array(new SharedArrayBuffer(64 * (members + 2)));
    words.set(crypto.getRandomValues(new Int32Array(4)), ID);
    words[MAGIC_AT] = MAGIC;
    const made = new WorkerMutex(words, 1, () => {});
    made.#watch();
    return made;
  }

  /* The same mutex in another thread, which becomes a member. `shared` is the `mutex.shared` of the creator. */
  static async join(shared) {
    checkIsolation();
    if (!(shared instanceof SharedArrayBuffer) || new Int32Array(shared)[MAGIC_AT] !== MAGIC)
      throw new MutexError("WorkerMutex.join() takes the `shared` of a mutex that WorkerMutex.create() has made.");
    const words = new Int32Array(shared);
    for (let member = 2; at(member + 1, 0) <= words.length; member += 1) {
      if (Atomics.load(words, at(member, ALIVE))) continue;
      const leave = await holdWebLock(webLockName(words, member));
      if (leave) return new WorkerMutex(words, member, leave);
    }
    throw new MutexError("All places of this mutex are taken. Create it with more: WorkerMutex.create({ members }).");
  }

  /* For create() and join(). */
  constructor(words, member, leave) {
    this.#words = words;
    this.#owner = new BigInt64Array(words.buffer, 0, 1);
    this.#me = member;
    this.#leave = leave;
    for (let highest; (highest = Atomics.load(words, HIGHEST)) < member; )
      Atomics.compareExchange(words, HIGHEST, highest, member);
    Atomics.store(words, at(member, ALIVE), 1);
    this.#announce();
  }

  /* What another thread needs to join: post it to the worker. */
  get shared() {
    return this.#words.buffer;
  }

  /* Block this worker until it holds the mutex. Throws LockTimeoutError after `timeout` milliseconds. */
  lock(timeout = Infinity) {
    if (!this.tryLock(timeout)) throw new LockTimeoutError(`The mutex was not free within ${timeout} ms.`);
  }

  /* Take the mutex if it comes free within `timeout` milliseconds. Returns whether it was taken. 0 blocks nowhere. */
  tryLock(timeout = 0) {
    this.#open();
    if (timeout > 0 && onPage()) throw new MutexError("A page must not block: use lockAsync() or withLockAsync().");
    if (timeout > 0 && this.#busy)
      throw new MutexError("This thread holds the mutex already, or waits for it: it would wait for itself.");
    if (this.#busy) return false;
    return (this.#busy = this.#acquire(timeout));
  }

  /* Wait for the mutex without blocking. Rejects with LockTimeoutError after `timeout` milliseconds, or with the reason
     of the aborted `signal`. Several callers in one thread get it one after the other. */
  async lockAsync({ timeout = Infinity, signal } = {}) {
    this.#open();
    const end = new AbortController();
    const late = () => end.abort(new LockTimeoutError(`The mutex was not free within ${timeout} ms.`));
    const aborted = () => end.abort(signal.reason);
    const timer = timeout <= LONGEST_TIMER && setTimeout(late, timeout);
    signal?.addEventListener("abort", aborted);
    try {
      signal?.throwIfAborted();
      if (this.#busy) await this.#inLine(end.signal);
      this.#busy = true;
      await this.#acquireAsync(end.signal);
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", aborted);
    }
  }

  /* Give the mutex to the member that has waited longest. */
  unlock() {
    if (this.#word === null) throw new MutexError("unlock() without lock(): this thread does not hold the mutex.");
    const ours = this.#release();
    this.#next();
    if (!ours) throw new MutexError("The mutex was taken away: another script has stolen the Web Lock of this thread.");
  }

  /* Call `callback(mutex)` while holding the mutex, and return its result. If that is a promise, the mutex is held
     until it is settled. */
  withLock(callback, timeout = Infinity) {
    this.lock(timeout);
    let result;
    try {
      result = callback(this);
    } catch (error) {
      this.unlock();
      throw error;
    }
    if (typeof result?.then === "function") return Promise.resolve(result).finally(() => this.unlock());
    this.unlock();
    return result;
  }

  /* The same without blocking, also on a page. `options` as for lockAsync(). */
  async withLockAsync(callback, options) {
    await this.lockAsync(options);
    try {
      return await callback(this);
    } finally {
      this.unlock();
    }
  }

  /* End the membership. After its creator has closed a mutex, workers that end are not noticed any more. */
  close() {
    if (this.#busy) throw new MutexError("This thread holds the mutex, or waits for it.");
    if (this.#closing.signal.aborted) return;
    this.#closing.abort();
    Atomics.store(this.#words, at(this.#me, ALIVE), 0);
    this.#announce();
    this.#leave();
  }

  #open() {
    if (this.#closing.signal.aborted) throw new MutexError("This mutex was closed here.");
  }

  // callers of one thread

  async #inLine(signal) {
    let turn;
    const turned = new Promise((resolve) => this.#line.push((turn = resolve)));
    try {
      await unlessAborted(turned, signal);
    } catch (error) {
      const place = this.#line.indexOf(turn);
      if (place < 0) this.#next(); // its turn has come at the same moment
      else this.#line.splice(place, 1);
      throw error;
    }
  }

  #next() {
    const turn = this.#line.shift();
    if (turn) turn();
    else this.#busy = false;
  }

  // waiting

  #acquire(timeout) {
    const ends = performance.now() + timeout;
    this.#queue();
    for (;;) {
      const seen = Atomics.load(this.#words, at(this.#me, WAKE));
      if (this.#granted()) return true;
      const left = ends - performance.now();
      if (left <= 0) return this.#giveUp();
      Atomics.wait(this.#words, at(this.#me, WAKE), seen, Math.min(left, SLICE));
    }
  }

  async #acquireAsync(signal) {
    this.#queue();
    try {
      for (;;) {
        const seen = Atomics.load(this.#words, at(this.#me, WAKE));
        if (this.#granted()) return;
        await unlessAborted(changed(this.#words, at(this.#me, WAKE), seen, SLICE, POLL), signal);
      }
    } catch (error) {
      if (this.#giveUp()) this.#release();
      this.#next();
      throw error;
    }
  }

  /* Wait no longer. Returns whether the mutex came at the last moment. */
  #giveUp() {
    if (this.#withdraw(this.#me)) return this.#granted();
    this.#grant();
    return false;
  }

  #release() {
    const word = this.#word;
    this.#word = null;
    this.abandoned = false;
    return this.#handOn(word);
  }

  // the shared memory

  #queue() {
    let ticket;
    while (!(ticket = Atomics.add(this.#words, NEXT, 1))); // 0 says that a member does not wait
    Atomics.store(this.#words, at(this.#me, TICKET), ticket);
  }

  /* Whether the mutex was handed to this member, perhaps just now. */
  #granted() {
    this.#grant();
    const word = Atomics.load(this.#owner, 0);
    if (holderOf(word) !== this.#me) return false;
    Atomics.store(this.#words, at(this.#me, TICKET), 0);
    this.abandoned = Atomics.exchange(this.#words, ABANDONED, 0) === 1;
    this.#word = word;
    return true;
  }

  /* Hand a free mutex to the member with the lowest ticket, and wake it. A member calls this after it has written its
     ticket, and after it has freed the mutex: of two that meet, one sees the other. */
  #grant() {
    for (;;) {
      const word = Atomics.load(this.#owner, 0);
      const first = holderOf(word) ? 0 : this.#first();
      if (!first) return;
      if (Atomics.compareExchange(this.#owner, 0, word, word | BigInt(first)) !== word) continue;
      if (first !== this.#me) this.#wake(first);
      return;
    }
  }

  /* The waiting member with the lowest ticket, or 0. Tickets may go round: those that wait are close together. */
  #first() {
    let first = 0;
    let lowest = 0;
    for (let member = Atomics.load(this.#words, HIGHEST); member; member -= 1) {
      const ticket = Atomics.load(this.#words, at(member, TICKET));
      if (ticket && (!first || ((ticket - lowest) | 0) < 0)) [first, lowest] = [member, ticket];
    }
    return first;
  }

  #wake(member) {
    Atomics.add(this.#words, at(member, WAKE), 1);
    Atomics.notify(this.#words, at(member, WAKE));
  }

  /* End a holding and begin the next one. Returns false if the holding had ended before. */
  #handOn(word) {
    const ours = Atomics.compareExchange(this.#owner, 0, word, (word & ~MEMBER) + CHANGE) === word;
    this.#grant();
    return ours;
  }

  /* Take a member out of the queue. Returns whether it has got the mutex before that.
     A free word is changed, so that nobody hands the mutex over by an older look at the queue. */
  #withdraw(member) {
    Atomics.store(this.#words, at(member, TICKET), 0);
    for (;;) {
      const word = Atomics.load(this.#owner, 0);
      if (holderOf(word)) return holderOf(word) === member;
      if (Atomics.compareExchange(this.#owner, 0, word, word + CHANGE) === word) return false;
    }
  }

  // members that end

  #announce() {
    Atomics.add(this.#words, JOINED, 1);
    Atomics.notify(this.#words, JOINED);
  }

  async #watch() {
    const { signal } = this.#closing;
    const watched = new Set();
    while (!signal.aborted) {
      const seen = Atomics.load(this.#words, JOINED);
      for (let member = Atomics.load(this.#words, HIGHEST); member > 1; member -= 1) {
        if (watched.has(member) || !Atomics.load(this.#words, at(member, ALIVE))) continue;
        watched.add(member);
        const ended = () => {
          this.#takeOut(member);
          watched.delete(member);
        };
        navigator.locks.request(webLockName(this.#words, member), { signal }, ended).catch(() => {}); // closed
      }
      await changed(this.#words, JOINED, seen, Infinity, WATCH_POLL);
    }
  }

  /* The thread of this member has ended, at whatever instruction. */
  #takeOut(member) {
    if (this.#withdraw(member)) {
      Atomics.store(this.#words, ABANDONED, 1);
      this.#handOn(Atomics.load(this.#owner, 0));
    } else this.#grant();
    Atomics.store(this.#words, at(member, ALIVE), 0);
  }
}
