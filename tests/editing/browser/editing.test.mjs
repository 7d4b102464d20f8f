// The state machine of the script, without a browser: a server of the test's own, a clock that the test moves.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, Editor, Tab, safely } from "../../../django_distlock/static/django_distlock/editing.js";

class Clock {
  constructor() {
    this.time = 1_000_000;
    this.timers = [];
  }
  now = () => this.time;
  wait = (call, delay) => {
    const timer = { at: this.time + delay, call };
    this.timers.push(timer);
    return () => (this.timers = this.timers.filter((each) => each !== timer));
  };
  async pass(seconds) {
    const end = this.time + seconds * 1000;
    for (;;) {
      await settle();
      const next = this.timers.filter((each) => each.at <= end).sort((a, b) => a.at - b.at)[0];
      if (!next) break;
      this.timers.splice(this.timers.indexOf(next), 1);
      this.time = Math.max(this.time, next.at);
      next.call();
    }
    this.time = end;
    await settle();
  }
  sleep(seconds) {
    this.time += seconds * 1000; // a closed lid: no timer runs
  }
}

const settle = async () => {
  for (let turn = 0; turn < 40; turn += 1) await Promise.resolve();
};

class View {
  constructor() {
    this.shut = false;
    this.banners = [];
    this.states = [];
    this.keeps = 0;
    this.leases = [];
    this.dropped = 0;
  }
  readonly = (on) => (this.shut = on);
  banner = (look, kind, facts, actions) => this.banners.push({ look, kind, facts, actions });
  clear = () => this.banners.push(null);
  emit = (state) => this.states.push(state);
  keep = () => (this.keeps += 1);
  drop = () => (this.dropped += 1);
  lease = (id) => this.leases.push(id);
  get last() {
    return this.banners.at(-1);
  }
}

const memory = () => {
  const entries = new Map();
  return {
    getItem: (key) => entries.get(key) ?? null,
    setItem: (key, value) => entries.set(key, value),
    removeItem: (key) => entries.delete(key),
  };
};

const json = (body, status = 200) => ({
  status,
  ok: status < 300,
  headers: new Map([["Content-Type", "application/json"]]),
  json: async () => body,
});

/* A document with one form. `answer` replies to one item, or throws for a cut network. */
const page = async (answer, { clock = new Clock(), extra = {} } = {}) => {
  const requests = [];
  const store = memory();
  const storage = safely(() => store);
  const tab = new Tab({ storage, wait: clock.wait });
  const view = new View();
  const script = { answer };
  const fetch = async (url, init = {}) => {
    const body = init.body instanceof URLSearchParams ? Object.fromEntries(init.body) : init.body ? JSON.parse(init.body) : null;
    requests.push({ url, body, signal: init.signal, headers: init.headers, method: init.method ?? "GET" });
    const made = await script.answer(body?.items?.[0], requests.at(-1));
    return made.status === undefined ? json({ items: [made], beat: 20, ...extra }) : made;
  };
  let token = "old";
  const csrf = { get: () => token, set: (value) => (token = value) };
  const client = new Client({ tab, fetch, now: clock.now, wait: clock.wait, endpoint: "/beat", release: "/release", csrf, beat: 20 });
  const editor = new Editor(view, { grant: "G", key: "K", idle: 900, mode: "enforce" }, storage, clock.now);
  await client.start([editor]);
  const verbs = () => requests.filter((each) => each.body?.items).map((each) => each.body.items[0].verb);
  return { clock, view, editor, client, requests, verbs, script, csrf };
};

/* Somebody types there, and has the lock. */
const typing = async () => {
  const made = await page(free);
  made.editor.input();
  made.client.send();
  await made.clock.pass(1);
  return made;
};

const FREE = { state: "free", changed: null };
const held = (item) => ({ state: "held", lease: item.lease, fence: 1, expires_in: 60, changed: null });
const free = (item) => (item.verb === "watch" ? FREE : held(item));
const busy = (facts = {}) => ({
  state: "busy",
  holder: { label: "Ada", since: 120, idle: 0, own: false, saving: false, expires_in: 30, ...facts },
  can_take_over: false,
});

test("a page that is only read claims nothing", async () => {
  const { verbs, clock, editor } = await page(free);
  await clock.pass(100);
  assert.deepEqual([...new Set(verbs())], ["watch"]);
  assert.equal(editor.state, "free");
});

test("the first key claims, further keys do not, and beats renew", async () => {
  const { verbs, clock, editor, client, view } = await page(free);
  assert.equal(editor.input(), true);
  assert.equal(editor.input(), false);
  client.send();
  await clock.pass(45);
  assert.deepEqual(verbs(), ["watch", "claim", "renew", "renew"]);
  assert.deepEqual([view.leases.at(-1), view.shut], [editor.lease, false]);
});

test("busy makes it read-only and says who; free unlocks it", async () => {
  const { view, clock, script } = await page(() => busy());
  assert.equal(view.shut, true);
  assert.deepEqual(view.last, { look: "busy", kind: "busy", facts: { who: "Ada", since: 120, idle: 0 }, actions: [] });
  script.answer = free;
  await clock.pass(21);
  assert.deepEqual([view.shut, view.last.kind], [false, "free"]);
  script.answer = () => busy({ own: true });
  await clock.pass(45);
  assert.deepEqual([view.last.kind, view.last.actions], ["own_tab", ["edit_here"]]);
  script.answer = () => ({ state: "free", changed: { by: "Ada", at: 1 } }); // saved meanwhile
  await clock.pass(21);
  assert.deepEqual([view.shut, view.last.actions], [true, ["reload"]]);
});

test("who slept while somebody came reads it, then that it was saved, or gets it back", async () => {
  for (const [changed, kind, shut] of [[{ by: "Bo", at: 1 }, "changed_typing", true], [null, "free", false]]) {
    const { view, clock, script } = await typing();
    script.answer = () => ({ state: "lost", reason: "expired", by: "Bo", changed: null });
    await clock.pass(21);
    assert.equal(view.last.kind, "expired");
    script.answer = () => ({ state: "free", changed });
    await clock.pass(45);
    assert.deepEqual([view.last.kind, view.shut], [kind, shut]);
  }
});

test("what was said about typed text stays while somebody else edits", async () => {
  const { view, editor, clock, script } = await typing();
  script.answer = () => ({ state: "lost", reason: "taken_over", by: "Bo", changed: null });
  await clock.pass(21);
  assert.deepEqual([view.last.kind, view.last.facts.who, view.shut, view.keeps], ["taken_over", "Bo", true, 1]);
  script.answer = () => busy();
  await clock.pass(45);
  assert.deepEqual([view.last.kind, view.last.actions, editor.state], ["taken_over", [], "lost"]);
  script.answer = () => ({ ...busy(), can_take_over: true });
  await clock.pass(21);
  assert.deepEqual([view.last.kind, view.last.actions], ["taken_over", ["take_over"]]);
});

test("a request that never ends does not silence those behind it", async () => {
  const { clock, requests, script, view } = await typing();
  script.answer = (item, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", reject));
  await clock.pass(100);
  assert.equal(view.last.kind, "offline");
  script.answer = free;
  const before = requests.length;
  await clock.pass(40);
  assert.ok(requests.length > before);
  assert.equal(view.last, null);
});

test("a lost reply is asked again with the same id", async () => {
  const { requests, clock, editor, client, script } = await page(free);
  script.answer = () => {
    throw new TypeError("network");
  };
  editor.input();
  client.send();
  await clock.pass(1);
  script.answer = free;
  await clock.pass(21);
  const claims = requests.map((each) => each.body.items[0]).filter((item) => item.verb === "claim");
  assert.equal(claims.length, 2);
  assert.equal(claims[0].lease, claims[1].lease);
  assert.equal(editor.lease, claims[0].lease);
});

test("a reply for a lease that is no longer one's own is not believed", async () => {
  const { editor, view } = await page(free);
  editor.input();
  const old = editor.item();
  editor.answered(old, held(old), 0);
  editor.ask("adopt", editor.lease);
  const next = editor.item();
  editor.answered(next, held(next), 0);
  editor.answered({ ...old, verb: "renew" }, { state: "lost", reason: "expired", by: "Bo" }, 0);
  assert.equal(editor.state, "held");
  assert.equal(view.shut, false);
});

test("the page that goes reserves its lease; a form that was submitted hands it over", async () => {
  for (const submitted of [false, true]) {
    const { editor, client, requests } = await typing();
    editor.submitted = submitted;
    client.hide();
    const releases = requests.filter((each) => each.url === "/release");
    assert.equal(releases.length, submitted ? 0 : 1);
    if (!submitted) assert.deepEqual(releases[0].body, { tab: client.tab.id, reserve: "1", grant: "G", lease: editor.lease });
  }
});

test("an idle form warns for at least 20 seconds, a key dismisses it, then it is given back", async () => {
  const { editor, client, clock, view, requests } = await page(free);
  editor.input();
  client.send();
  await clock.pass(901);
  assert.equal(view.last.kind, "idle_warning");
  await clock.pass(20);
  assert.equal(editor.state, "held");
  editor.input();
  assert.equal(view.last, null);
  await clock.pass(935);
  assert.equal(editor.state, "given");
  assert.equal(requests.filter((each) => each.url === "/release").length, 1);
  assert.equal(view.shut, false);
  assert.equal(editor.input(), true); // the next key claims again
});

test("after a sleep it asks before it believes", async () => {
  const { editor, client, clock, requests } = await page(free);
  editor.input();
  client.send();
  await clock.pass(5);
  const before = requests.length;
  clock.sleep(3600);
  await clock.pass(1);
  assert.ok(requests.length > before);
});

test("a rotated CSRF token is fetched once and used in the form too", async () => {
  const { csrf, script, client, requests } = await page(free);
  script.answer = (item, request) => {
    if (request.method === "GET") return json({ csrf: "new", logged_in: true });
    return request.headers["X-CSRFToken"] === "new" ? FREE : { status: 403, headers: new Map(), ok: false };
  };
  await client.send();
  assert.equal(csrf.get(), "new");
  assert.deepEqual(requests.slice(-3).map((each) => each.method), ["POST", "GET", "POST"]);
});

test("the end of the session is announced once", async () => {
  const extra = { session_ends_in: 100 };
  const { view, clock } = await page(free, { extra });
  await clock.pass(60);
  assert.equal(view.banners.filter((each) => each?.kind === "session_ends").length, 1);
});

test("a refused grant asks no more claims", async () => {
  const { editor, client, clock, verbs, script } = await page(free);
  script.answer = () => ({ state: "error", reason: "grant" });
  editor.input();
  client.send();
  await clock.pass(1);
  assert.deepEqual([editor.state, editor.input()], ["failed", false]);
  await clock.pass(60);
  assert.equal(verbs().filter((verb) => verb === "claim").length, 1);
});

test("a view that cannot be asked: the page says so, and shuts nothing", async () => {
  const { editor, client, clock, view, script } = await page(() => ({ state: "error", reason: "view" }));
  assert.deepEqual([view.last.kind, view.shut], ["unasked", false]);
  editor.input();
  client.send();
  await clock.pass(60);
  assert.deepEqual([view.last.kind, view.shut, editor.lease], ["unasked", false, null]);
  assert.ok(view.banners.every((each) => each === null || each.kind === "unasked"));
  script.answer = free;
  await clock.pass(21);
  assert.deepEqual([editor.state, view.last], ["held", null]);
  for (const [reason, seconds, said] of [["database", 21, undefined], ["view", 90, "unasked"]]) {
    script.answer = () => ({ state: "error", reason }); // takes no lock away
    await clock.pass(seconds);
    assert.deepEqual([editor.state, view.last?.kind, view.shut], ["held", said, false]);
  }
});

test("requests of one document do not overlap", async () => {
  let open = 0;
  let most = 0;
  const { client } = await page(async () => {
    open += 1;
    most = Math.max(most, open);
    await settle();
    open -= 1;
    return FREE;
  });
  await Promise.all([client.send(), client.send(), client.send()]);
  assert.equal(most, 1);
});

test("a browser that stands still while it asks for its own id does not count as a copy", async () => {
  const clock = new Clock();
  let grant;
  const locks = {
    request: (name, { signal }, callback) =>
      new Promise((resolve, refuse) => {
        signal.addEventListener("abort", () => refuse(new Error("abort")));
        grant = () => resolve(callback());
      }),
  };
  const shared = memory();
  shared.setItem("distlock.tab", "mine");
  const tab = new Tab({ storage: safely(() => shared), locks, wait: clock.wait });
  await clock.pass(0);
  clock.sleep(2); // now its timers are due, and come before the lock
  await clock.pass(0);
  grant();
  await tab.ready;
  assert.equal(tab.id, "mine");
  assert.equal(tab.copied, false);
});

test("forbidden storage is no error", () => {
  const storage = safely(() => {
    throw new Error("SecurityError");
  });
  storage.set("a", "1");
  assert.equal(storage.get("a"), "1");
  storage.remove("a");
  assert.equal(storage.get("a"), null);
});
