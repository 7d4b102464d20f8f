// The state machine of the script, without a browser: a server of the test's own, a clock that the test moves.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, Editor, FormView, Mark, safely } from "../../../django_distlock/static/django_distlock/editing.js";

const settle = async () => {
  for (let turn = 0; turn < 40; turn += 1) await Promise.resolve();
};

class Clock {
  time = 1_000_000;
  timers = [];
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

class View {
  shut = false;
  banners = [];
  keeps = 0;
  leases = [];
  readonly = (on) => (this.shut = on);
  banner = (look, kind, facts, actions) => this.banners.push({ look, kind, facts, actions });
  clear = () => this.banners.push(null);
  emit = () => undefined;
  keep = () => (this.keeps += 1);
  drop = () => undefined;
  lease = (id) => this.leases.push(id);
  get last() {
    return this.banners.at(-1);
  }
  get says() {
    return [this.last?.kind, this.shut];
  }
}

const memory = (entries = new Map()) => ({
  getItem: (key) => entries.get(key) ?? null,
  setItem: (key, value) => entries.set(key, value),
  removeItem: (key) => entries.delete(key),
});

const json = (body, status = 200) => ({
  status,
  ok: status < 300,
  headers: new Map([["Content-Type", "application/json"]]),
  json: async () => body,
});

/* A document with one form. `answer` replies to one request, or throws for a cut network. */
const page = async (answer, { stored, locks, ...extra } = {}) => {
  const clock = new Clock();
  const requests = [];
  const store = memory(new Map(stored ? [["distlock.edit.K", stored]] : []));
  const storage = safely(() => store);
  const view = new View();
  const script = { answer };
  const fetch = async (url, { method = "GET", body, headers, signal, redirect }) => {
    assert.deepEqual([url, redirect], ["/page/?id=5", "manual"]);
    requests.push({ item: body ? JSON.parse(body) : null, signal, headers, method });
    const made = await script.answer(requests.at(-1).item, requests.at(-1));
    return made.status === undefined ? json({ beat: 20, ...extra, ...made }) : made;
  };
  let token = "old";
  const csrf = { get: () => token, set: (value) => (token = value) };
  const editor = new Editor(view, { grant: "G", key: "K", idle: 900, mode: "enforce" }, storage, clock.now);
  const mark = new Mark({ locks, wait: clock.wait });
  const client = new Client({ editor, mark, fetch, now: clock.now, wait: clock.wait, endpoint: "/page/?id=5", csrf, beat: 20 });
  const started = client.start();
  await clock.pass(1);
  await started;
  const asked = () => requests.filter((each) => each.item).map((each) => each.item);
  const verbs = () => asked().map((each) => each.verb).filter((verb) => verb !== "release");
  const releases = () => asked().filter((each) => each.verb === "release");
  /* Somebody types there. */
  const type = async (seconds = 1) => {
    const claims = editor.input();
    client.send();
    await clock.pass(seconds);
    return claims;
  };
  /* From now on the server answers so, until the next beats are over. */
  const serve = async (answer, seconds = 21) => {
    script.answer = answer;
    await clock.pass(seconds);
  };
  return { clock, view, editor, client, mark, requests, verbs, releases, script, csrf, type, serve };
};

/* Somebody types there, and has the lock. */
const typing = async () => {
  const made = await page(free);
  await made.type();
  return made;
};

const held = (item) => ({ state: "held", lease: item.lease, expires_in: 60, changed: null });
const saved = (by) => () => ({ state: "free", changed: by && { by, at: 1 } });
const free = (item) => (item.verb === "watch" ? saved(null)() : held(item));
const lost = (reason) => () => ({ state: "lost", reason, by: "Bo", changed: null });
const busy = (facts = {}, can_take_over = false) => () => ({
  state: "busy",
  holder: { label: "Ada", since: 120, idle: 0, own: false, saving: false, expires_in: 30, ...facts },
  can_take_over,
});
const cut = () => {
  throw new TypeError("network");
};

test("e11, e17: a page that is only read claims nothing, the first key does, and beats renew", async () => {
  const { verbs, clock, editor, view, type } = await page(free);
  await clock.pass(100);
  assert.deepEqual([[...new Set(verbs())], editor.state], [["watch"], "free"]);
  assert.deepEqual([await type(0), await type(45)], [true, false]);
  assert.deepEqual(verbs().slice(-4), ["claim", "renew", "renew", "renew"]);
  assert.deepEqual([view.leases.at(-1), view.shut], [editor.lease, false]);
});

test("e13: busy makes it read-only and says who; free unlocks it", async () => {
  const { view, serve } = await page(busy());
  assert.deepEqual(view.last, { look: "busy", kind: "busy", facts: { who: "Ada", since: 120, idle: 0 }, actions: [] });
  assert.equal(view.shut, true);
  await serve(free);
  assert.deepEqual(view.says, ["free", false]);
  await serve(busy({ own: true }), 45);
  assert.deepEqual([view.last.kind, view.last.actions], ["own_tab", ["edit_here"]]);
  await serve(saved("Ada")); // meanwhile
  assert.deepEqual([view.shut, view.last.actions], [true, ["reload"]]);
});

test("e14: who slept while somebody came reads it, then that it was saved, or gets it back", async () => {
  for (const [by, kind, shut] of [["Bo", "changed_typing", true], [null, "free", false]]) {
    const { view, serve } = await typing();
    await serve(lost("expired"));
    assert.equal(view.last.kind, "expired");
    await serve(saved(by), 45);
    assert.deepEqual(view.says, [kind, shut]);
  }
});

test("e18: what was said about typed text stays while somebody else edits", async () => {
  const { view, editor, serve } = await typing();
  await serve(lost("taken_over"));
  assert.deepEqual([view.last.kind, view.last.facts.who, view.shut, view.keeps], ["taken_over", "Bo", true, 1]);
  await serve(busy(), 45);
  assert.deepEqual([view.last.kind, view.last.actions, editor.state], ["taken_over", [], "lost"]);
  await serve(busy({}, true));
  assert.deepEqual([view.last.kind, view.last.actions], ["taken_over", ["take_over"]]);
});

test("a request that never ends does not silence those behind it", async () => {
  const { requests, view, serve } = await typing();
  await serve((item, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", reject)), 100);
  assert.equal(view.last.kind, "offline");
  const before = requests.length;
  await serve(free, 40);
  assert.ok(requests.length > before);
  assert.equal(view.last, null);
});

test("e1: a lost reply is asked again with the same id", async () => {
  const { requests, editor, type, serve, script } = await page(free);
  script.answer = cut;
  await type();
  await serve(free);
  const claims = requests.filter((each) => each.item?.verb === "claim").map((each) => each.item.lease);
  assert.deepEqual(claims, [editor.lease, editor.lease]);
});

test("e12: a reply for a lease that is no longer one's own is not believed", async () => {
  const { editor, view } = await page(free);
  editor.input();
  const old = editor.item();
  editor.answered(old, held(old), 0);
  editor.ask("adopt", editor.lease);
  const next = editor.item();
  editor.answered(next, held(next), 0);
  editor.answered({ ...old, verb: "renew" }, lost("expired")(), 0);
  assert.deepEqual([editor.state, view.shut], ["held", false]);
});

test("e12: the page that goes reserves its lease; a form that was submitted hands it over", async () => {
  for (const submitted of [false, true]) {
    const { editor, client, releases } = await typing();
    editor.submitted = submitted;
    client.hide();
    const expected = { verb: "release", grant: "G", lease: editor.lease, reserve: true };
    assert.deepEqual(releases(), submitted ? [] : [expected]);
  }
});

test("e15: an idle form warns for at least 20 seconds, a key dismisses it, then it is given back", async () => {
  const { editor, clock, view, releases, type } = await page(free);
  await type(901);
  assert.equal(view.last.kind, "idle_warning");
  await clock.pass(20);
  assert.equal(editor.state, "held");
  editor.input();
  assert.equal(view.last, null);
  await clock.pass(935);
  assert.deepEqual([editor.state, releases().length, view.shut], ["given", 1, false]);
  assert.equal(editor.input(), true); // the next key claims again
});

test("e14: after a sleep it asks before it believes", async () => {
  const { clock, requests } = await typing();
  const before = requests.length;
  clock.sleep(3600);
  await clock.pass(1);
  assert.ok(requests.length > before);
});

const refused = { status: 403, headers: new Map(), ok: false };

test("e16: a rotated CSRF token is fetched once and used in the form too", async () => {
  const { csrf, script, client, requests } = await page(free);
  script.answer = (item, request) => {
    if (request.method === "GET") return json({ csrf: "new" });
    return request.headers["X-CSRFToken"] === "new" ? free(item) : refused;
  };
  await client.send();
  assert.equal(csrf.get(), "new");
  assert.deepEqual(requests.slice(-3).map((each) => each.method), ["POST", "GET", "POST"]);
});

test("e3, e16: what the view itself answers: its log-in page, 403, an error, something else", async () => {
  const redirected = { type: "opaqueredirect", status: 0, headers: new Map() };
  const error = (status) => ({ status, headers: new Map() });
  for (const [reply, kind, shut] of [
    [redirected, "logged_out", true],
    [json({ reason: "logged_out" }, 401), "logged_out", true],
    [refused, "permission", true],
    [error(404), undefined, false],
    [error(500), undefined, false],
  ]) {
    const { view, serve, editor } = await typing();
    await serve(() => reply);
    assert.deepEqual([view.last?.kind, view.shut], [kind, shut]);
    if (kind === "logged_out") await serve(free, 41); // after a log-in in another tab it goes on
    if (kind === "logged_out") assert.equal(editor.state, "held");
  }
});

test("e16: the end of the session is announced once", async () => {
  const { view, clock } = await page(free, { session_ends_in: 100 });
  await clock.pass(60);
  assert.equal(view.banners.filter((each) => each?.kind === "session_ends").length, 1);
});

test("a refused grant asks no more claims", async () => {
  const { editor, clock, verbs, script, type } = await page(free);
  script.answer = () => ({ state: "error", reason: "grant" });
  await type();
  assert.deepEqual([editor.state, editor.input()], ["failed", false]);
  await clock.pass(60);
  assert.equal(verbs().filter((verb) => verb === "claim").length, 1);
});

test("a view that cannot be asked: the page says so, and shuts nothing", async () => {
  const { editor, view, type, serve } = await page(() => ({ state: "error", reason: "view" }));
  assert.deepEqual(view.says, ["unasked", false]);
  await type(60);
  assert.deepEqual([...view.says, editor.lease], ["unasked", false, null]);
  assert.ok(view.banners.every((each) => each === null || each.kind === "unasked"));
  await serve(free);
  assert.deepEqual([editor.state, view.last], ["held", null]);
  for (const [reason, seconds, said] of [["database", 21, undefined], ["view", 90, "unasked"]]) {
    await serve(() => ({ state: "error", reason }), seconds); // takes no lock away
    assert.deepEqual([editor.state, ...view.says], ["held", said, false]);
  }
});

test("e13: requests of one document do not overlap", async () => {
  let open = 0;
  let most = 0;
  const { client } = await page(async (item) => {
    open += 1;
    most = Math.max(most, open);
    await settle();
    open -= 1;
    return free(item);
  });
  await Promise.all([client.send(), client.send(), client.send()]);
  assert.equal(most, 1);
});

/* The Web Locks of a browser in which another document has the lock on these ids. */
const locking = (...taken) => ({
  request: (name, { signal }, callback) =>
    new Promise((resolve, refuse) => {
      signal.addEventListener("abort", () => refuse(new Error("abort")));
      if (!taken.includes(name)) resolve(callback());
    }),
});

test("e11: a lease in sessionStorage is adopted unless another tab has it, of which this one is a copy", async () => {
  for (const [locks, verb] of [[undefined, "adopt"], [locking(), "adopt"], [locking("distlock-edit-mine"), "watch"]]) {
    const { verbs } = await page(busy({ own: true }), { stored: "mine", locks });
    assert.equal(verbs()[0], verb);
  }
});

test("e11: a browser that stands still while it asks for the mark does not count as a copy", async () => {
  const clock = new Clock();
  let grant;
  const locks = { request: (name, options, callback) => new Promise((resolve) => (grant = () => resolve(callback()))) };
  const taken = new Mark({ locks, wait: clock.wait }).take("mine");
  await clock.pass(0);
  clock.sleep(2); // now its timers are due, and come before the lock
  await clock.pass(0);
  grant();
  assert.equal(await taken, true);
});

test("a form that was submitted and is still here, as after a download, gives its lease back when it goes", async () => {
  const { clock, client, releases } = await typing();
  client.sent();
  client.hide();
  assert.equal(releases().length, 0);
  await clock.pass(7);
  client.hide();
  assert.equal(releases().length, 1);
});

test("forbidden storage is no error", () => {
  const storage = safely(cut);
  storage.set("a", "1");
  assert.equal(storage.get("a"), "1");
  storage.remove("a");
  assert.equal(storage.get("a"), null);
});

/* What the next page of this tab offers of a text that was typed against version 1, and maybe sent. */
const offered = ({ sent, version, mine, shows = "old" }) => {
  const store = memory();
  const storage = safely(() => store);
  const form = (dataset, text) => {
    const view = Object.create(FormView.prototype);
    return Object.assign(view, { storage, root: { dataset: { key: "K", ...dataset } }, texts: {}, sent, values: () => text });
  };
  form({ version: "1" }, "typed").keep();
  const next = form({ version, ...(mine && { mine: "" }) }, shows);
  const said = [];
  next.texts = { kept: "kept", kept_older: "kept_older" };
  next.fill = (box, look, message) => said.push(message);
  next.offer();
  return said;
};

test("e8: a text is offered unless it has been saved, and what was sent is not said to be unsaved", () => {
  assert.deepEqual(offered({ sent: false, version: "1" }), ["kept"]);
  assert.deepEqual(offered({ sent: false, version: "2", mine: true }), ["kept_older"]);
  assert.deepEqual(offered({ sent: true, version: "1" }), ["kept"], "the connection broke: nothing was saved");
  assert.deepEqual(offered({ sent: true, version: "2", mine: true }), [], "it was saved, in another spelling");
  assert.deepEqual(offered({ sent: true, version: "2" }), ["kept_older"], "somebody else has saved, maybe after it");
  assert.deepEqual(offered({ sent: true, version: "2", shows: "typed" }), []);
});

test("e12: a beat behind the save of its form claims nothing, while the page goes", async () => {
  const { client, clock, editor, script, verbs } = await typing();
  client.sent();
  script.answer = lost("released");
  client.send();
  await clock.pass(1);
  assert.deepEqual([editor.state, verbs().filter((verb) => verb === "claim").length], ["free", 1]);
});
