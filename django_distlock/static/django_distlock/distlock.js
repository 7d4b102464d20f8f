/* Locks between tabs, browsers and devices, in the shape of Web Locks.

   The lease of the server with its fence is the truth: a view under @requires_lock refuses a request that comes too
   late. What this script says (lock.signal, lock.expiresIn) is early news of it. All times are in milliseconds. */

const PATIENCE = 10_000; // that a request may take
const AWAY = 15_000; // longest pause between questions to a server that does not answer
const STREAM_AGAIN = 300_000; // until a server without event streams is asked for one again
const FORGOTTEN = 150_000; // a tab that has said nothing for longer is gone; a hidden one asks each minute
const MOST = 100; // that are watched by one stream, or renewed at once
const RECORD_TTL = 10_000; // of a record in localStorage,
const RECORD_TTL_HIDDEN = 150_000; // and of a hidden tab, whose timers may run once a minute
const SETTLE = 25; // that a new record in localStorage must stay unchanged

const LOST = {
  __proto__: null, // the reason comes from the server
  expired: "it was not renewed in time (no connection, or a tab that stood still)",
  max_hold: "it was held for as long as its grant allows; raise max_hold, or hold it for a shorter time",
  page: "the page was left; wait for pageshow",
  logged_out: "its user is logged out",
  permission: "its user may no longer have it",
  grant: "its grant has ended; load the page again",
  broken: "an administrator has ended it",
  taken: "another tab or device has it",
  released: "it was released already",
  stolen: "another script has stolen the Web Lock",
};
const REFUSED = {
  __proto__: null,
  grant: "The grant is forged, has ended or belongs to another user. Load the page again for a new grant.",
  logged_out: "The lock needs a user who is logged in. Log in and ask again.",
  permission: "This user may not have this lock.",
  request: "The request was refused. Check the options.",
  quota: "This user holds or waits for too many locks. Release some, or raise MAX_HELD and MAX_WAITING.",
  csrf: "The CSRF token was refused twice. Give the option csrf, and check CSRF_TRUSTED_ORIGINS.",
  unreachable: "The lock server did not answer. Try again.",
  endpoint: "There is no lock server at the endpoint. Check the option endpoint.",
};

export class LockError extends Error {
  constructor(message, reason) {
    super(message);
    this.name = this.constructor.name;
    this.reason = reason;
  }
}
export class LockTimeoutError extends LockError {}
export class LockLostError extends LockError {}

// stands still while some computers sleep, see Leases.#woke
const clock = () => performance.now();
const jitter = (delay) => delay * (0.8 + Math.random() * 0.4);
const page = globalThis.document;
const hidden = () => page?.visibilityState === "hidden";
const on = (target, types, call) => types.split(" ").forEach((type) => target?.addEventListener(type, call));

// not crypto.randomUUID: that exists in secure contexts only
const randomId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/* Timers. Browsers run those of a hidden tab once a minute, but those of a worker in time: this file is its script
   too. A bundle has another name and does without. */
const timers = new Map();
let helper = null;
let made = 0;

const wait = (delay, call) => {
  const key = (made += 1);
  const run = () => {
    clearTimeout(timer);
    if (timers.delete(key)) call();
  };
  const timer = setTimeout(run, delay);
  timers.set(key, { run, at: clock() + delay });
  if (hidden()) help();
  helper?.postMessage([key, delay]);
  return () => {
    clearTimeout(timer);
    timers.delete(key);
  };
};
const help = () => {
  if (helper || !/\/distlock(\.\w+)?\.js($|\?)/.test(import.meta.url)) return;
  try {
    helper = new Worker(import.meta.url, { type: "module", name: "distlock-timers" });
    helper.onmessage = ({ data }) => timers.get(data)?.run();
    for (const [key, { at }] of timers) helper.postMessage([key, at - clock()]);
  } catch {
    helper = null; // static files on another origin, or a policy without workers
  }
};
const alone = () => {
  helper?.terminate();
  helper = null;
};
if (page) {
  on(page, "visibilitychange", () => (hidden() ? timers.size && help() : alone()));
  on(globalThis, "pagehide", alone);
} else if (globalThis.name === "distlock-timers")
  on(globalThis, "message", ({ data: [key, delay] }) => setTimeout(() => postMessage(key), delay));

/* What a caller holds. */
class Lock {
  #lease;
  #keeper;

  constructor(lease, keeper) {
    this.#lease = lease;
    this.#keeper = keeper;
    const { guarantee, name, id, fence } = lease;
    Object.assign(this, { guarantee, name, id, fence });
  }

  get expiresIn() {
    this.#keeper.look();
    const { signal, doubtful, expires } = this.#lease;
    return signal.aborted || this.#lease.over || doubtful ? 0 : Math.max(0, expires - clock());
  }

  get signal() {
    this.#keeper.look();
    return this.#lease.signal;
  }

  get headers() {
    return this.fence === undefined ? {} : { "Distlock-Lease": `${this.id};${this.fence}` };
  }

  release() {
    return this.#keeper.release(this.#lease);
  }
}

/* A request that waits; news wakes it. */
class Ticket {
  constructor(grant, { ifAvailable, ttl }) {
    Object.assign(this, { grant, ifAvailable, ttl, id: randomId(), over: false, failures: 0, holder: null, place: null });
  }

  wake() {}

  sleep(delay) {
    return new Promise((resolve) => {
      const cancel = wait(delay, resolve);
      this.wake = () => {
        cancel();
        resolve();
      };
      if (this.over || this.news) this.wake();
    });
  }
}

/* What the kinds of locks share: they end when the page is left. Each has ask(): one attempt, which returns the lease,
   null if the lock is not to be had, or nothing to be asked again. */
class Keeper {
  held = new Map();
  waiting = new Set();
  shown = Promise.resolve(); // pending while the page is in the back/forward cache
  era = 0; // replies to requests of an earlier one are not believed

  async acquire(ticket) {
    this.waiting.add(ticket);
    try {
      while (!ticket.over) {
        await this.shown;
        const lease = await this.ask(ticket);
        if (lease !== undefined) return lease;
      }
      return null;
    } finally {
      this.waiting.delete(ticket);
    }
  }

  lease(ticket, facts) {
    const abort = new AbortController();
    const lease = { id: ticket.id, name: ticket.grant, expires: Infinity, abort, signal: abort.signal, ...facts };
    this.held.set(lease.id, lease);
    return lease;
  }

  lose(lease, reason) {
    if (!this.held.delete(lease.id)) return;
    lease.lost = reason;
    const why = LOST[reason] ?? reason;
    const message = `The lock was lost: ${why}. What it protected may have been done twice: check it, and ask again.`;
    lease.abort.abort(new LockLostError(message, reason));
  }

  look() {}

  soon() {
    for (const ticket of this.waiting) ticket.wake();
  }

  unload() {}

  hide() {
    this.era += 1;
    this.shown = new Promise((resolve) => (this.show = resolve));
    for (const lease of this.held.values()) this.lose(lease, "page");
  }

  show() {}
}

/* The leases of the server: one renewal for all of them, and the questions of those who wait. */
class Leases extends Keeper {
  #renewing = false;
  #due = Infinity;
  #cancel = () => {};
  #drift = Date.now() - clock();

  constructor(wire, events) {
    super();
    this.wire = wire;
    this.events = events ? new Events(this, wire.url, events) : null;
  }

  async acquire(ticket) {
    try {
      const lease = await super.acquire(ticket);
      if (!lease && ticket.over) this.#give(ticket.id); // the place
      return lease;
    } catch (error) {
      if (error.reason === "unreachable") this.#give(ticket.id); // it may have reached the server
      throw error;
    } finally {
      this.events?.update();
    }
  }

  async ask(ticket) {
    this.look();
    const [era, sent] = [this.era, clock()];
    const { grant, id, ttl, ifAvailable, place } = ticket;
    ticket.news = false;
    ticket.wake = () => (ticket.news = true); // the answer may be older
    const question = { grant, id, ttl: ttl / 1000, queue: !ifAvailable, hidden: hidden(), again: place !== null };
    const reply = await this.wire.send("POST", "leases/", question);
    this.look();
    if (era !== this.era) return; // the page was left or slept; the same id asks again
    if (reply.status === 201) {
      const lease = this.#granted(ticket, reply, sent);
      if (lease) return lease;
    } else if (reply.status === 409) {
      if (ifAvailable) return null;
      Object.assign(ticket, { holder: reply.holder, place: reply.place, failures: 0 });
      this.events?.update();
    } else {
      const refused = refusal(reply, ticket);
      if (refused) throw refused;
      ticket.failures += 1;
    }
    const failures = ticket.failures && Math.min(AWAY, 500 * 2 ** ticket.failures);
    await ticket.sleep(jitter(Math.max(reply.retry_after * 1000 || 0, failures) || 500));
  }

  #granted(ticket, { fence, expires_in }, sent) {
    const { grant, ttl } = ticket;
    const life = expires_in * 1000;
    if (sent + life - margin(life) <= clock()) return null;
    const lease = this.lease(ticket, { name: undefined, guarantee: "lease", grant, ttl, fence, life, sent });
    this.#confirm(lease, life, sent);
    this.#beat();
    return lease;
  }

  /* The server has counted from a moment after the request was sent: the end here is before the end there. */
  #confirm(lease, life, sent) {
    lease.doubtful = false;
    lease.expires = sent + life;
    lease.renewed = sent > lease.sent;
    this.#due = Math.min(this.#due, sent + lease.life / 3);
  }

  /* A tab that stood still believes nothing it knew. */
  look() {
    if (this.#woke()) {
      this.era += 1;
      for (const lease of this.held.values()) lease.doubtful = true;
      this.#renew();
    }
    for (const lease of [...this.held.values()])
      if (lease.expires - clock() <= margin(lease.life)) this.lose(lease, "expired");
  }

  /* The clock of the page may stand still while the computer sleeps. Then the other one has moved ahead of it; it has
     so too when it was set forward, and a renewal tells which. */
  #woke() {
    const drift = Date.now() - clock();
    const woke = drift - this.#drift > 1500;
    this.#drift = drift;
    return woke;
  }

  #beat() {
    this.#cancel();
    this.look();
    if (!this.held.size) {
      this.#due = Infinity;
      return;
    }
    if (clock() >= this.#due) this.#renew();
    const shortest = Math.min(...[...this.held.values()].map(({ life }) => life));
    this.#cancel = wait(beat(shortest), () => this.#beat());
  }

  async #renew() {
    this.#due = Infinity;
    if (this.#renewing || !this.held.size) return;
    this.#renewing = true;
    const leases = [...this.held.values()].sort((a, b) => a.expires - b.expires).slice(0, MOST);
    const shortest = Math.min(...leases.map(({ life }) => life));
    const [era, sent] = [this.era, clock()];
    const body = { leases: leases.map(({ id, fence, grant, ttl }) => ({ id, fence, grant, ttl: ttl / 1000 })) };
    const reply = await this.wire.send("POST", "leases/renew/", body, { patience: Math.min(PATIENCE, shortest / 3) });
    this.#renewing = false;
    this.look();
    if (era === this.era) this.#renewed(leases, reply, sent);
    else this.#due = 0;
    this.events?.update();
    this.#beat();
  }

  #renewed(leases, reply, sent) {
    const items = new Map(Array.isArray(reply.leases) ? reply.leases.map((item) => [item.id, item]) : []);
    for (const lease of leases) {
      const { lost, expires_in } = items.get(lease.id) ?? {};
      if (lost || reply.status === 401) this.lose(lease, lost ?? "logged_out");
      else if (expires_in > 0) this.#confirm(lease, expires_in * 1000, sent);
      else if (lease.doubtful) this.lose(lease, "expired");
      else this.#due = Math.min(this.#due, clock() + jitter(lease.life / 10));
    }
  }

  /* The network is back, or the tab: ask before believing anything. */
  soon() {
    super.soon();
    this.#due = 0;
    this.#beat();
  }

  release(lease) {
    if (lease.over) return lease.over;
    const expired = !this.held.delete(lease.id);
    lease.over = expired && lease.lost !== "expired" ? Promise.resolve() : this.#give(lease.id, lease.expires);
    this.events?.update();
    return lease.over;
  }

  /* A lost release would make others wait until the lease ends. */
  async #give(id, until = clock() + PATIENCE) {
    const { status } = await this.wire.send("POST", `leases/${id}/release/`, undefined, { keepalive: true });
    if ((status >= 500 || status === 429 || !status) && clock() < until) wait(1000, () => this.#give(id, until));
  }

  /* Firefox looks for Web Locks before pagehide. If the page stays after all, the next request leads again. */
  unload() {
    this.events?.close();
  }

  hide() {
    for (const { id } of [...this.held.values(), ...this.waiting]) this.wire.beacon(`leases/${id}/release/`);
    this.unload();
    super.hide();
  }
}

// A lease is looked at this often, and ends here before it ends at the server.
const beat = (life) => Math.min(1000, Math.max(100, life / 30));
const margin = (life) => beat(life) * 1.5;

/* Why an answer ends the waiting; nothing if another try may help. */
const refusal = ({ status, reason, detail }, { ifAvailable }) => {
  const usual = { 0: "unreachable", 401: "logged_out", 403: reason ? "permission" : "csrf" };
  const known = REFUSED[reason] ? reason : usual[status];
  const passing = !status || status >= 500 || (status === 429 && reason !== "quota");
  if (passing && !ifAvailable) return null;
  const why = known ?? (passing ? "unreachable" : "endpoint");
  return new LockError(detail ? `${REFUSED[why]} (${detail})` : REFUSED[why], why);
};

/* Requests to the lock server. They never throw: status 0 is no answer. */
class Wire {
  #token = "";

  constructor({ endpoint, csrf, fetch }) {
    if (!endpoint) throw new TypeError('Locks of the server need new LockManager({ endpoint: "/distlock/" }).');
    this.base = new URL(endpoint.endsWith("/") ? endpoint : `${endpoint}/`, location.href);
    this.csrf = csrf;
    this.fetch = (...request) => (fetch ?? globalThis.fetch)(...request);
  }

  url = (path) => new URL(path, this.base).href;

  async send(method, path, body, { patience = PATIENCE, keepalive = false } = {}) {
    const abort = new AbortController();
    const cancel = wait(patience, () => abort.abort());
    try {
      const ask = async (again) => {
        const headers = {};
        if (method !== "GET") headers["X-CSRFToken"] = await this.token(again, abort.signal);
        if (body) headers["Content-Type"] = "application/json";
        const init = { method, headers, keepalive, credentials: "include", signal: abort.signal };
        const reply = await this.fetch(this.url(path), { ...init, body: body && JSON.stringify(body) });
        const found = /json/.test(reply.headers.get("Content-Type")) ? await reply.json() : {};
        // a log-in in another tab has changed the token
        if (reply.status === 403 && !found.reason && !again && method !== "GET") return ask(true);
        return { retry_after: Number(reply.headers.get("Retry-After")), ...found, status: reply.status };
      };
      return await ask(false);
    } catch (error) {
      // a page in the place of JSON: no lock server
      return { status: error.status ?? (error instanceof SyntaxError ? 200 : 0) };
    } finally {
      cancel();
    }
  }

  async token(again, signal) {
    if (this.csrf) this.#token = typeof this.csrf === "function" ? await this.csrf(again) : this.csrf;
    else if (again || !this.#token) {
      const field = !again && page?.querySelector("input[name=csrfmiddlewaretoken]");
      if (field?.value) this.#token = field.value;
      else {
        const reply = await this.fetch(this.url("csrf/"), { credentials: "include", signal });
        if (!reply.ok) throw reply;
        this.#token = (await reply.json()).csrf;
      }
    }
    return this.#token;
  }

  /* From a page that goes. */
  beacon(path) {
    const body = new URLSearchParams({ csrfmiddlewaretoken: this.#token });
    if (!navigator.sendBeacon?.(this.url(path), body)) this.send("POST", path, undefined, { keepalive: true });
  }
}

/* News from the server, which only makes questions come sooner. Browsers open six connections to a server at most, so
   tabs share one stream: the tab with the Web Lock has it, and tells others. */
class Events {
  #me = randomId();
  #tabs = new Map(); // what each tab waits for
  #channel = null;
  #standing = null;
  #lead = null; // gives the lead back
  #streams = new Set();
  #opening = null; // tabs that come together make one stream
  #watched = "";
  #none = 0;

  constructor(leases, url, wanted) {
    Object.assign(this, { leases, url });
    const able = globalThis.EventSource && navigator.locks && globalThis.BroadcastChannel;
    if (!able && wanted !== true) this.#none = Infinity;
    this.shared = Boolean(able);
  }

  /* Short sections need no news: only waiters do, and renewed leases. */
  #own() {
    const { waiting, held } = this.leases;
    const told = [...waiting].filter(({ place }) => place !== null);
    return [...told, ...[...held.values()].filter(({ renewed }) => renewed)].map(({ id }) => id);
  }

  update() {
    if (clock() < this.#none) return;
    const ids = this.#own();
    if (!ids.length && !this.#tabs.has(this.#me)) return;
    this.#heard({ tab: this.#me, ids });
    if (!this.shared) return;
    this.#say({ tab: this.#me, ids });
    if (ids.length && !this.#standing) this.#stand();
  }

  #say(message) {
    if (!this.#channel) {
      this.#channel = new BroadcastChannel(`distlock:${this.url("")}`);
      this.#channel.onmessage = ({ data }) => this.#heard(data);
    }
    this.#channel.postMessage(message);
  }

  #heard({ tab, ids, ask, news, none }) {
    if (ids?.length) this.#tabs.set(tab, { ids, at: clock() });
    else if (ids) this.#tabs.delete(tab);
    if (ids && (this.#lead || !this.shared)) this.#opening ??= wait(200, () => this.#open());
    if (ask) this.update();
    if (none) this.#none = clock() + STREAM_AGAIN;
    if (news) this.#act(news);
  }

  #stand() {
    const abort = (this.#standing = new AbortController());
    navigator.locks
      .request(`distlock:${this.url("")}`, { signal: abort.signal }, () => {
        if (abort.signal.aborted || clock() < this.#none) return null;
        this.#say({ ask: true });
        return new Promise((resolve) => {
          this.#lead = resolve;
          this.#heard({ ids: [] });
        });
      })
      .catch(() => {})
      .finally(() => {
        if (this.#standing === abort) this.#standing = null;
      });
  }

  /* A stream for what all tabs wait for; the one before goes on until it opens. */
  #open() {
    this.#opening = null;
    for (const [tab, { at }] of this.#tabs) if (clock() - at > FORGOTTEN) this.#tabs.delete(tab);
    const ids = [...new Set([...this.#tabs.values()].flatMap((each) => each.ids))].sort().slice(0, MOST);
    if (!ids.length) return this.#stop();
    const watched = new URLSearchParams(ids.map((id) => ["id", id])).toString();
    if (watched === this.#watched) return;
    this.#watched = watched;
    const stream = new EventSource(`${this.url("leases/events/")}?${watched}`, { withCredentials: true });
    stream.onopen = () => this.#end(stream);
    stream.onerror = () => {
      if (stream.readyState !== EventSource.CLOSED || !this.#streams.has(stream)) return;
      this.#none = clock() + STREAM_AGAIN;
      if (this.shared) this.#say({ none: true });
      this.#stop();
    };
    on(stream, "turn lost", ({ type, data }) => {
      const news = { type, ...JSON.parse(data) };
      this.#act(news);
      if (this.shared) this.#say({ news });
    });
    this.#streams.add(stream);
  }

  /* Close those before it, or all. */
  #end(stream) {
    for (const each of this.#streams) {
      if (each === stream) return;
      each.close();
      this.#streams.delete(each);
    }
  }

  #act({ type, id, reason }) {
    for (const ticket of this.leases.waiting) if (ticket.id === id) ticket.wake();
    const lease = this.leases.held.get(id);
    if (lease && type === "lost") this.leases.lose(lease, reason);
  }

  #stop() {
    this.#end();
    this.#watched = "";
    this.#lead?.();
    this.#lead = this.#standing = null; // the tab may wait again
  }

  /* A stream, Web Lock or channel would keep the page out of the back/forward cache. */
  close() {
    if (this.#channel) this.#say({ tab: this.#me, ids: [] });
    this.#standing?.abort();
    this.#opening?.();
    this.#opening = null;
    this.#stop();
    this.#channel?.close();
    this.#channel = null;
    this.#tabs.clear();
  }
}

/* Locks between the tabs of one browser: Web Locks. */
class WebLocks extends Keeper {
  ask(ticket) {
    const abort = new AbortController();
    ticket.wake = () => ticket.over && abort.abort();
    ticket.leave = () => abort.abort();
    const options = ticket.ifAvailable ? { ifAvailable: true } : { signal: abort.signal };
    const ended = (error) => (error.name === "AbortError" ? undefined : Promise.reject(error)); // or the page is left
    return new Promise((resolve, reject) => {
      let lease = null;
      navigator.locks
        .request(`distlock:${ticket.grant}`, options, (granted) => {
          if (!granted) return resolve(null);
          return new Promise((free) => {
            lease = this.lease(ticket, { guarantee: "browser", free });
            resolve(lease);
          });
        })
        .catch((error) => (lease ? this.lose(lease, "stolen") : reject(error)));
    }).catch(ended);
  }

  async release(lease) {
    lease.over = true;
    this.held.delete(lease.id);
    lease.free();
  }

  /* A Web Lock would keep the page out of the back/forward cache. */
  hide() {
    for (const { free } of this.held.values()) free();
    for (const ticket of this.waiting) ticket.leave?.();
    super.hide();
  }
}

/* The same without Web Locks (pages served by http): a record in localStorage. Tabs see what others write some
   milliseconds later, so a new record must stay unchanged for a while; if a browser is slower, two hold the lock. A
   record ends if it stays the same for its ttl: no clocks are compared. It names the request and not the tab, because
   a duplicated tab has the same sessionStorage. */
class Records extends Keeper {
  #cancel = () => {};

  constructor(settle) {
    super();
    this.settle = settle;
    on(globalThis, "storage", ({ key }) => {
      for (const ticket of this.waiting) if (key === `distlock:${ticket.grant}`) ticket.wake();
      this.look();
    });
  }

  async ask(ticket) {
    const key = `distlock:${ticket.grant}`;
    const text = localStorage.getItem(key);
    if (text !== ticket.seen) Object.assign(ticket, { seen: text, since: clock() });
    if (!text || clock() - ticket.since > lifetime(text)) {
      const lease = await this.#claim(ticket, key);
      if (lease) return lease;
    } else if (ticket.ifAvailable) return null;
    else await ticket.sleep(jitter(250));
    await ticket.sleep(Math.random() * this.settle); // all who wait have heard of a release at once
  }

  async #claim(ticket, key) {
    const { era } = this;
    const record = this.#write({ key, id: ticket.id });
    await new Promise((resolve) => wait(this.settle, resolve));
    if (localStorage.getItem(key) !== record.text) return null;
    if (era !== this.era) return localStorage.removeItem(key);
    const lease = this.lease(ticket, { guarantee: "best-effort", ...record });
    this.#beat();
    return lease;
  }

  #write(record) {
    const ttl = hidden() ? RECORD_TTL_HIDDEN : RECORD_TTL;
    const text = JSON.stringify({ id: record.id, beat: randomId(), ttl });
    localStorage.setItem(record.key, text);
    return Object.assign(record, { text, ends: clock() + ttl });
  }

  look() {
    for (const lease of [...this.held.values()])
      if (localStorage.getItem(lease.key) !== lease.text) this.lose(lease, "taken");
      else if (clock() > lease.ends) this.lose(lease, "expired");
  }

  #beat() {
    this.#cancel();
    this.look();
    for (const lease of this.held.values()) this.#write(lease);
    if (this.held.size) this.#cancel = wait(RECORD_TTL / 3, () => this.#beat());
  }

  /* Hidden or shown again: the record says for how long others must wait. */
  soon() {
    super.soon();
    this.#beat();
  }

  async release(lease) {
    lease.over = true;
    if (this.held.delete(lease.id)) this.#clear(lease);
  }

  #clear({ key, text }) {
    if (localStorage.getItem(key) === text) localStorage.removeItem(key);
  }

  hide() {
    for (const lease of this.held.values()) this.#clear(lease);
    super.hide();
  }
}

const lifetime = (text) => {
  try {
    return JSON.parse(text).ttl;
  } catch {
    return 0; // not a record of this script
  }
};

const OPTIONS = ["scope", "ifAvailable", "timeout", "signal", "ttl"];

export class LockManager {
  #options;
  #keepers = new Map();

  /* { endpoint, csrf, fetch, events: "auto" | true | false } */
  constructor(options = {}) {
    this.#options = { events: "auto", settle: SETTLE, ...options };
    on(globalThis, "beforeunload", () => this.#each("unload"));
    on(globalThis, "pagehide", () => this.#each("hide"));
    on(globalThis, "pageshow", ({ persisted }) => persisted && (this.#each("show"), this.#each("soon")));
    on(globalThis, "online focus", () => this.#each("soon"));
    on(page, "visibilitychange resume", () => this.#each("soon"));
  }

  #each(call) {
    for (const keeper of this.#keepers.values()) keeper[call]();
  }

  #keeper(scope) {
    if (!/^(server|browser)$/.test(scope))
      throw new TypeError(`There is no scope ${scope}: take "server" or "browser".`);
    const { events, settle } = this.#options;
    const make = () => {
      if (scope === "server") return new Leases(new Wire(this.#options), events);
      return navigator.locks ? new WebLocks() : new Records(settle);
    };
    if (!this.#keepers.has(scope)) this.#keepers.set(scope, make());
    return this.#keepers.get(scope);
  }

  /* Call back with the lock, and release it when the callback has ended. */
  async request(grant, options, callback) {
    if (!callback) [options, callback] = [{}, options];
    if (typeof callback !== "function") throw new TypeError("request() needs a callback; hold() does without.");
    const lock = await this.hold(grant, options);
    try {
      const result = await callback(lock);
      lock?.signal.throwIfAborted();
      return result;
    } finally {
      await lock?.release();
    }
  }

  /* A lock until release() is called, or the page is left. */
  async hold(grant, options = {}) {
    const foreign = Object.keys(options).find((name) => !OPTIONS.includes(name));
    if (foreign) throw new TypeError(`There is no option ${foreign}: take ${OPTIONS.join(", ")}.`);
    const { scope = "server", timeout, signal } = options;
    const keeper = this.#keeper(scope);
    signal?.throwIfAborted();
    const ticket = new Ticket(grant, options);
    return new Promise((resolve, reject) => {
      const end = (settle, value) => {
        ticket.over = true;
        cancel();
        signal?.removeEventListener("abort", aborted);
        settle(value);
        ticket.wake();
      };
      const aborted = () => end(reject, signal.reason);
      const cancel = timeout !== null && timeout >= 0 && timeout < 2 ** 31 ? wait(timeout, () => end(reject, late(ticket, timeout))) : () => {};
      signal?.addEventListener("abort", aborted);
      keeper.acquire(ticket).then(
        (lease) => {
          if (!ticket.over) end(resolve, lease && new Lock(lease, keeper));
          else if (lease) keeper.release(lease);
        },
        (error) => end(reject, error),
      );
    });
  }

  /* What this user holds at the server, on all devices, and what this tab holds and waits for. */
  async query() {
    const leases = this.#keeper("server");
    const reply = await leases.wire.send("GET", "leases/");
    if (reply.status !== 200) throw refusal(reply, { ifAvailable: true });
    const waiting = [...this.#keepers.values()].flatMap((keeper) => [...keeper.waiting]);
    const pending = waiting.map(({ id, grant, holder, place }) => ({ id, grant, holder, place }));
    return { held: reply.leases, pending };
  }
}

const late = ({ holder, place }, timeout) => {
  const who = holder ? `; ${holder} has it` : "";
  const where = place ? `; ${place} were ahead` : "";
  const cure = "Wait longer with the option timeout, or ask with ifAvailable.";
  return new LockTimeoutError(`The lock was not free within ${timeout} ms${who}${where}. ${cure}`, "timeout");
};
