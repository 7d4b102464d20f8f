/* Edit locks in the browser. The server decides what may be saved; this script shows it early and keeps what was typed.

   Each form has a Client, its requests, an Editor, its state machine, and a FormView, its DOM. The requests go to the
   address of the form itself. Rules E11 to E20 in the documentation say what each state means. */

const GRACE = 30; // seconds of warning before an idle form is given back; WCAG 2.2.1 asks for 20
const SESSION_WARNING = 120;
const SESSION_BEAT = 60; // seconds between two questions about the end of the session
const PATIENCE = 15; // seconds that a request may take
const ANSWER = 6; // seconds after which a submitted form that is still here has been answered by no page
const LOSSES = ["taken_over", "other_tab", "broken", "expired", "deleted", "permission"];
const UNSAFE = /^(csrfmiddlewaretoken|distlock_edit.*|idempotency.*|_.*)$/;

const randomId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/* sessionStorage may be forbidden: then a reload is a new tab. */
export const safely = (storage) => {
  const own = new Map();
  const attempt = (call, fallback) => {
    try {
      return call();
    } catch {
      return fallback();
    }
  };
  return {
    get: (key) => attempt(() => storage().getItem(key), () => own.get(key) ?? null),
    set: (key, value) => attempt(() => storage().setItem(key, value), () => own.set(key, value)),
    remove: (key) => attempt(() => storage().removeItem(key), () => own.delete(key)),
  };
};

/* "Duplicate" and window.open copy sessionStorage: a lease in it is this tab's only if no other document has the Web Lock
   on its id. Without Web Locks (http on a LAN) it counts as this tab's. */
export class Mark {
  constructor({ locks, wait }) {
    Object.assign(this, { locks, wait, id: null, drop: () => {} });
  }

  async take(id) {
    if (id === this.id) return true;
    this.leave();
    this.id = id;
    return !id || !this.locks || this.prove(id);
  }

  prove(id) {
    const abort = new AbortController();
    // at a reload the old document may still be leaving; a browser that stands still must not count as half a second
    let left = 5;
    const tick = () => (left -= 1) ? (stop = this.wait(tick, 100)) : abort.abort();
    let stop = this.wait(tick, 100);
    return new Promise((resolve) => {
      const granted = () => {
        stop();
        resolve(this.id === id);
        return this.id === id ? new Promise((release) => (this.drop = release)) : null;
      };
      this.locks.request(`distlock-edit-${id}`, { signal: abort.signal }, granted).catch(() => {
        if (this.id === id) this.id = null;
        resolve(false);
      });
    });
  }

  /* A held Web Lock keeps the page out of the back/forward cache. */
  leave() {
    this.drop();
    this.drop = () => {};
    this.id = null;
  }
}

/* The state of one form: unknown, free, claiming, held, busy, lost, ended (logged out), given (back, when idle), failed. */
export class Editor {
  constructor(view, options, storage, now) {
    Object.assign(this, { view, options, storage, now });
    this.state = "unknown";
    this.lease = null;
    this.asked = null; // the verb that waits for an answer, so that a lost reply is asked again with the same id
    this.expires = 0;
    this.typed = now(); // the time of the latest input
    this.dirty = options.refused; // a refused save: the form has what was typed
    this.submitted = false;
    this.stale = false; // somebody saved since this page was rendered
    this.warned = null;
    this.cut = false; // the screen says that there is no connection
    this.reason = "";
    this.said = null; // the banner about typed text whose lock was lost
  }

  get stored() {
    return `distlock.edit.${this.options.key}`;
  }

  ask(verb, previous = null) {
    const lease = randomId();
    this.asked = { verb, lease, previous };
    if (verb === "claim") this.to("claiming");
  }

  /* What this form asks for in the next request. */
  item() {
    const { grant } = this.options;
    const idle = Math.round((this.now() - this.typed) / 1000);
    if (this.asked) return { grant, idle, ...this.asked };
    if (this.state === "held") return { grant, verb: "renew", lease: this.lease, idle };
    return { grant, verb: "watch", fresh: this.state !== "free" };
  }

  /* True if the reply makes another request due. */
  answered(item, reply, sent) {
    // a reply is believed only if it answers the latest question about the lease of now
    if (this.asked ? item.lease !== this.asked.lease : item.verb === "renew" && item.lease !== this.lease) return false;
    if (!this.asked && item.verb === "watch" && this.state === "held") return false;
    if (!this.asked && item.verb !== "watch" && item.verb !== "renew") return false;
    const changed = reply.changed ?? null;
    if (reply.state === "held") this.hold(item, reply, sent, changed);
    else if (reply.state === "busy") this.shut(reply);
    else if (reply.state === "free") return this.open(changed);
    else if (reply.state === "lost" && reply.reason === "released") return this.again();
    else if (reply.state === "lost") this.lose(reply.reason, reply);
    else if (reply.state === "ended") this.end();
    else this.fail(reply);
    return false;
  }

  hold(item, reply, sent, changed) {
    const before = this.state;
    this.asked = null;
    this.lease = reply.lease ?? item.lease;
    this.expires = sent + reply.expires_in * 1000;
    this.storage.set(this.stored, this.lease);
    this.view.lease(this.lease);
    this.to("held", reply);
    if (changed && !this.stale) {
      this.stale = true;
      this.view.banner("changed", this.dirty ? "changed_typing" : "changed", { who: changed.by }, ["reload"]);
    } else if (!this.stale && !this.warned && (before !== "held" || this.cut)) this.view.clear();
    this.cut = false;
    if (this.stale && !this.dirty) this.view.readonly(true);
  }

  shut(reply) {
    if (this.state === "lost" && this.dirty && !this.asked) {
      // what was said about the typed text stays; a watch only adds what can be done
      if (reply.can_take_over && this.said) this.view.banner(...this.said, ["take_over"]);
      return;
    }
    this.asked = null;
    this.forget();
    const { holder } = reply;
    const kind = holder.own ? "own_tab" : holder.saving ? "saving" : holder.idle >= 60 ? "busy_idle" : "busy";
    const actions = holder.own ? ["edit_here"] : reply.can_take_over ? ["take_over"] : [];
    this.to("busy", reply);
    this.view.banner("busy", kind, { who: holder.label, since: holder.since, idle: holder.idle }, actions);
    if (this.dirty) this.view.keep();
  }

  open(changed) {
    const before = this.state;
    if (this.cut) this.view.clear();
    this.cut = false;
    if (before === "given" || before === "claiming" || before === "failed" || (before === "free" && !changed)) return false;
    if (before === "lost" && this.reason !== "expired" && (changed || this.reason !== "taken_over")) return false;
    if (changed) {
      this.stale = true;
      this.reason = "changed";
      if (this.dirty) this.view.keep();
      this.to(this.dirty ? "lost" : "busy");
      this.view.banner("changed", this.dirty ? "changed_typing" : "changed", { who: changed.by }, ["reload"]);
      return false;
    }
    this.to("free");
    if (before === "ended" && this.dirty) {
      this.ask("claim");
      return true;
    }
    if (before === "busy" || before === "lost") this.view.banner("free", "free", {}, []);
    else if (before === "ended") this.view.clear();
    return false;
  }

  lose(reason, reply) {
    this.asked = null;
    if (this.dirty && this.state !== "lost") this.view.keep();
    this.forget();
    // whoever came has saved and may be gone
    const saved = Boolean(reply.changed) && (reason === "expired" || reason === "saved");
    this.reason = saved ? "changed" : reason;
    this.to("lost", reply);
    if (saved) {
      this.stale = true;
      this.said = null;
      this.view.banner("changed", this.dirty ? "changed_typing" : "changed", { who: reply.changed.by }, ["reload"]);
      return;
    }
    const actions = reason === "other_tab" ? ["edit_here"] : reply.changed ? ["reload"] : [];
    this.said = ["lost", LOSSES.includes(reason) ? reason : "expired", { who: reply.by }];
    this.view.banner(...this.said, actions);
  }

  /* This tab has released it by itself, in a request that arrived late; or its form was saved, and the page goes. */
  again() {
    this.forget();
    this.to("free");
    const claims = this.dirty && !this.submitted;
    if (claims) this.ask("claim");
    return claims;
  }

  fail(reply) {
    if (reply.reason === "view") return this.unreachable("unasked");
    if (reply.reason === "database") return this.unreachable();
    this.asked = null;
    this.forget();
    this.to("failed", reply);
    this.view.banner("error", "error", {}, []);
  }

  forget() {
    this.lease = null;
    this.storage.remove(this.stored);
    this.view.lease("");
  }

  /* The user typed. True if a request is due. */
  input() {
    this.typed = this.now();
    this.dirty = true;
    if (this.warned) {
      this.warned = null;
      this.view.clear();
    }
    if (this.state === "unknown" || this.state === "free" || this.state === "given") {
      this.ask("claim");
      return true;
    }
    return false;
  }

  act(action, detail) {
    if (action === "edit_here") this.ask("claim");
    else if (action === "take_over") {
      this.ask("takeover");
      this.asked.reason = detail;
    } else return false;
    return true;
  }

  /* Called each second. True if the lease is to be given back. */
  tick() {
    if (this.state !== "held") return false;
    const quiet = (this.now() - this.typed) / 1000;
    const left = Math.ceil(this.options.idle + GRACE - quiet);
    if (quiet < this.options.idle) return false;
    if (left > 0) {
      this.warned ??= this.view.banner("warning", "idle_warning", { left }, []) ?? true;
      return false;
    }
    this.warned = null;
    return true;
  }

  give() {
    const { lease } = this;
    this.forget();
    this.to("given");
    this.view.banner("given", "idle", {}, []);
    return lease;
  }

  /* The user cancels: nothing is kept for this tab, neither the lease nor the text. */
  leave() {
    const lease = this.lease ?? this.asked?.lease;
    this.asked = null;
    this.dirty = false;
    this.forget();
    this.view.drop();
    this.to("free");
    return lease;
  }

  end() {
    if (this.state === "ended") return;
    if (this.dirty) this.view.keep();
    this.asked = null;
    this.to("ended");
    this.view.banner("lost", "logged_out", {}, []);
  }

  /* No reply: nothing is known, so nothing is taken away. The save decides. "unasked": the view cannot be asked by beats,
     and perhaps never can; that is said at once. */
  unreachable(kind = "offline") {
    const open = this.state === "unknown" || this.state === "free";
    this.cut =
      this.state === "claiming" || (this.state === "held" && this.now() > this.expires) || (kind === "unasked" && open);
    if (this.cut) this.view.banner("error", kind, {}, []);
  }

  to(state, detail = {}) {
    const shut = this.options.mode !== "warn" && (state === "busy" || state === "lost" || state === "ended");
    const before = this.state;
    this.state = state;
    // what was typed before the lock was lost may be sent: the server refuses it, and shows both versions
    this.view.readonly(shut, state === "lost");
    if (before !== state) this.view.emit(state, { ...detail, reason: this.reason });
  }
}

/* The requests of one form. */
export class Client {
  constructor({ editor, mark, fetch, now, wait, endpoint, csrf, beat }) {
    Object.assign(this, { editor, mark, fetch, now, wait, endpoint, csrf, beat });
    this.sending = null;
    this.again = false;
    this.cancel = () => {};
    this.last = now();
    this.asked = -Infinity; // when the end of the session was asked for
    this.warned = false;
  }

  async start() {
    const { editor } = this;
    const kept = editor.storage.get(editor.stored);
    const previous = editor.options.lease || (kept && (await this.mark.take(kept)) ? kept : null);
    if (previous) editor.ask("adopt", previous);
    else if (editor.dirty) editor.ask("claim");
    await this.send();
    this.second();
  }

  schedule(seconds = this.beat) {
    this.cancel();
    this.cancel = this.wait(() => this.send(), seconds * 1000);
  }

  /* A tick that comes late means that the computer slept: ask before anything is believed. */
  second() {
    const late = this.now() - this.last > this.beat * 2000;
    this.last = this.now();
    if (late) this.send();
    if (this.editor.tick()) this.give(this.editor.give());
    this.wait(() => this.second(), 1000);
  }

  /* One request at a time, so that replies are believed in the order of the requests. */
  async send() {
    if (this.sending) {
      this.again = true;
      return this.sending;
    }
    this.sending = this.exchange();
    await this.sending;
    this.sending = null;
    if (this.again) {
      this.again = false;
      return this.send();
    }
    this.schedule();
  }

  async exchange() {
    const { editor } = this;
    const item = editor.item();
    const sent = this.now();
    const session = sent - this.asked >= SESSION_BEAT * 1000;
    let reply;
    try {
      reply = await this.post({ ...item, session });
    } catch {
      reply = { state: "error", reason: "database" };
    }
    if (reply.beat) this.beat = reply.beat;
    if (session && reply.beat) {
      this.asked = sent;
      this.session(reply.session_ends_in);
    }
    if (editor.answered(item, reply, sent)) this.again = true;
    this.mark.take(editor.lease);
  }

  async post(body) {
    // a network that swallows requests must not silence the beats behind this one
    const abort = new AbortController();
    const cancel = this.wait(() => abort.abort(), PATIENCE * 1000);
    try {
      return await this.exchanged(body, abort.signal);
    } finally {
      cancel();
    }
  }

  request(verb, more) {
    const headers = { "Distlock-Edit": verb, "Content-Type": "application/json", "X-CSRFToken": this.csrf.get() };
    return this.fetch(this.endpoint, { credentials: "same-origin", redirect: "manual", headers, ...more });
  }

  /* The answer, or what the answer of somebody else says: the view's own log-in page, its 403, an error. */
  async exchanged(body, signal) {
    const ask = () => this.request(body.verb, { method: "POST", signal, body: JSON.stringify(body) });
    let reply = await ask();
    if (reply.status === 403) {
      const refused = await this.refresh(signal);
      if (refused) return refused;
      reply = await ask();
    }
    if (reply.type === "opaqueredirect" || reply.status === 401) return { state: "ended" };
    const found = await this.json(reply);
    if (found?.state) return found;
    return { state: "error", reason: reply.status >= 500 ? "database" : "view" };
  }

  async json(reply) {
    return (reply.headers.get("Content-Type") || "").includes("json") ? reply.json() : null;
  }

  /* A log-in in another tab has rotated the CSRF token. A page that is refused, too, may no longer be edited. */
  async refresh(signal) {
    const reply = await this.request("token", { signal });
    if (reply.type === "opaqueredirect") return { state: "ended" };
    if (reply.status === 403) return { state: "lost", reason: "permission" };
    const found = await this.json(reply);
    if (!found?.csrf) return { state: "error", reason: "view" };
    this.csrf.set(found.csrf);
    return null;
  }

  session(left) {
    const near = typeof left === "number" && left < SESSION_WARNING + SESSION_BEAT;
    if (near && !this.warned) this.editor.view.banner("warning", "session_ends", { left }, []);
    this.warned = near;
  }

  /* Give a lease back; with `reserve` it is kept for the next page of this tab for some seconds. */
  give(lease, reserve = false) {
    if (!lease) return;
    const body = JSON.stringify({ verb: "release", grant: this.editor.options.grant, lease, reserve });
    this.request("release", { method: "POST", keepalive: true, body }).catch(() => {});
  }

  /* The form is on its way. If the page is still here then, as after a download, it is no hand-over. */
  sent() {
    this.editor.submitted = true;
    this.wait(() => (this.editor.submitted = false), ANSWER * 1000);
  }

  /* The page goes. A form that was submitted hands its lease over. */
  hide() {
    const { editor } = this;
    if (editor.state === "held" && !editor.submitted) this.give(editor.lease, true);
    this.mark.leave();
  }

  show() {
    this.editor.submitted = false;
    if (this.editor.state === "held") this.editor.ask("adopt", this.editor.lease);
    return this.send();
  }
}

/* "3 minutes": the language of the page by the texts of the server, which have no singular. */
export const span = (texts, seconds) => {
  const [unit, n] =
    seconds < 90 ? ["seconds", seconds] : seconds < 5400 ? ["minutes", seconds / 60] : ["hours", seconds / 3600];
  return texts[unit].replace("{n}", String(Math.max(2, Math.round(n))));
};

export const fill = (texts, kind, facts) =>
  texts[kind].replace(/\{(who|since|idle|left)\}/g, (_, name) =>
    name === "who" ? facts.who || texts.somebody : span(texts, facts[name] ?? 0),
  );

/* The form, its banner and what was typed. All text enters the page as text, never as markup. */
export class FormView {
  constructor(root, texts, storage) {
    Object.assign(this, { root, texts, storage });
    this.form = root.closest("form");
    // browsers put text that was typed before into a new page, and the save would pass
    this.form.autocomplete = "off";
    // the state, and the offer of unsaved text, which stays while the state changes
    [this.box, this.offered] = [1, 2].map(() => {
      const box = document.createElement("div");
      box.className = "distlock-banner";
      box.setAttribute("role", "status");
      return box;
    });
    this.form.prepend(this.box, this.offered);
    this.served = this.form.querySelector("[data-distlock-served]"); // what the page said before the script did
    this.shut = false;
    this.sent = false; // nothing was typed since the form was sent
    this.shown = "";
    this.act = () => {};
    for (const type of ["beforeinput", "keydown", "mousedown", "click", "paste", "drop", "submit"])
      this.form.addEventListener(type, (event) => this.guard(event), true);
  }

  get kept() {
    return `distlock.text.${this.root.dataset.key}`;
  }

  fields() {
    return [...this.form.elements].filter((field) => field.name && field.type !== "hidden" && !UNSAFE.test(field.name));
  }

  lease(id) {
    this.set("distlock_edit_lease", id);
  }

  set(name, value) {
    for (const field of this.form.querySelectorAll(`input[name="${name}"]`)) field.value = value;
  }

  /* Read-only and never disabled: the text stays selectable, copyable and readable by screen readers. */
  readonly(on, sendable = false) {
    this.sendable = sendable;
    if (on === this.shut) return;
    this.shut = on;
    this.form.classList.toggle("distlock-locked", on);
    for (const field of this.form.elements) {
      if (this.own(field) || field.type === "hidden") continue;
      const text = field.matches("textarea, input:not([type=checkbox], [type=radio], [type=file], [type=submit], [type=button], [type=range], [type=color])");
      if (on) field.dataset.distlockWas = text && field.readOnly ? "1" : "";
      if (text) field.readOnly = on || field.dataset.distlockWas === "1";
      const name = text ? "aria-readonly" : "aria-disabled";
      if (on) field.setAttribute(name, "true");
      else field.removeAttribute(name);
    }
  }

  /* Selects, checkboxes, files and editors of a site have no readonly. */
  guard(event) {
    const { target, type } = event;
    if (this.sendable && (type === "submit" || target.closest?.("button, [type=submit]"))) return;
    if (!this.shut || this.own(target)) return;
    if (type === "keydown" && (event.key === "Tab" || event.ctrlKey || event.metaKey || /^(Arrow|Page|Home|End|Escape|Shift)/.test(event.key)) && !target.matches("select, [type=radio], [type=range], [type=number], [type=date]")) return;
    if (type === "keydown" && event.key === "Tab") return;
    const text = target.matches?.("textarea, input:not([type=checkbox], [type=radio], [type=file], [type=submit], [type=button], [type=image], [type=range], [type=color], [type=date])");
    if ((type === "mousedown" || type === "click") && (text || !target.closest?.("select, input, button, label, summary, [contenteditable]"))) return;
    if (type === "click" && target.closest("a[href]")) return;
    event.preventDefault();
    event.stopImmediatePropagation();
  }

  own(element) {
    return this.box.contains(element) || this.offered.contains(element);
  }

  clear(box = this.box) {
    if (box === this.box) this.served?.remove();
    if (box === this.box) this.shown = "";
    box.replaceChildren();
    box.className = "distlock-banner";
  }

  banner(look, kind, facts, actions) {
    const message = fill(this.texts, kind, facts);
    // said again only if it says something else: a screen reader would read it at every beat
    const shown = JSON.stringify([look, kind, facts.who, actions]);
    if (shown === this.shown) return true;
    this.shown = shown;
    this.served?.remove();
    this.fill(this.box, look, message, actions);
    return true;
  }

  fill(box, look, message, actions) {
    const text = document.createElement("p");
    text.textContent = message;
    box.className = `distlock-banner distlock-${look}`;
    box.replaceChildren(text, ...actions.map((action) => this.button(action)));
  }

  button(action) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = this.texts[action];
    button.dataset.distlockAction = action;
    button.addEventListener("click", () => (action === "take_over" ? this.ask(button) : this.act(action)));
    return button;
  }

  /* A takeover has a reason, which the audit entry names. */
  ask(button) {
    const label = document.createElement("label");
    const reason = document.createElement("input");
    reason.type = "text";
    reason.maxLength = 200;
    label.append(this.texts.take_over_reason, " ", reason);
    const confirm = document.createElement("button");
    confirm.type = "button";
    confirm.textContent = this.texts.take_over;
    confirm.dataset.distlockAction = "confirm";
    confirm.addEventListener("click", () => this.act("take_over", reason.value));
    const cancel = document.createElement("button");
    cancel.type = "button";
    cancel.textContent = this.texts.cancel;
    cancel.addEventListener("click", () => {
      parts.forEach((part) => part.remove());
      button.hidden = false;
      button.focus();
    });
    const parts = [label, confirm, cancel];
    reason.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault(); // not the form's submit button
        confirm.click();
      }
    });
    button.hidden = true;
    button.after(...parts);
    reason.focus();
  }

  emit(state, detail) {
    this.form.dispatchEvent(new CustomEvent(`distlock:${state}`, { bubbles: true, detail }));
  }

  values() {
    return this.fields()
      .filter((field) => !["password", "file", "submit", "button", "image", "reset"].includes(field.type))
      .filter((field) => !/^(cc-|one-time-code|current-password|new-password)/.test(field.autocomplete))
      .map((field) => {
        const marked = field.type === "checkbox" || field.type === "radio";
        const chosen = field.multiple && field.options ? [...field.selectedOptions].map((option) => option.value) : null;
        return [field.name, marked ? [field.value, field.checked] : (chosen ?? field.value)];
      });
  }

  /* Text together with the version it was typed against. */
  keep() {
    const kept = { values: this.values(), version: this.root.dataset.version, sent: this.sent };
    this.storage.set(this.kept, JSON.stringify(kept));
  }

  forget() {
    this.storage.remove(this.kept);
  }

  offer() {
    let kept;
    try {
      kept = JSON.parse(this.storage.get(this.kept) || "null");
    } catch {
      kept = null;
    }
    if (!kept) return;
    const { version, mine } = this.root.dataset;
    const same = kept.version === version;
    // what was sent has been saved if the last save was of this user; else nobody knows, and it is offered
    const saved = kept.sent && !same && mine !== undefined;
    if (saved || JSON.stringify(kept.values) === JSON.stringify(this.values())) return this.forget();
    this.fill(this.offered, "kept", this.texts[same ? "kept" : "kept_older"], ["put_back", "discard"]);
    this.putting = kept.values;
  }

  putBack() {
    const left = [...this.putting];
    for (const field of this.fields()) {
      const index = left.findIndex(([name, value]) => name === field.name && (!Array.isArray(value) || typeof value[1] !== "boolean" || value[0] === field.value));
      if (index < 0) continue;
      const [, value] = left.splice(index, 1)[0];
      if (field.type === "checkbox" || field.type === "radio") field.checked = value[1];
      else if (Array.isArray(value)) for (const option of field.options) option.selected = value.includes(option.value);
      else field.value = value;
      field.dispatchEvent(new Event("input", { bubbles: true }));
      field.dispatchEvent(new Event("change", { bubbles: true }));
    }
    this.drop();
  }

  drop() {
    this.forget();
    this.clear(this.offered);
  }
}

const options = ({ grant, key, idle, mode, lease, refused }) =>
  ({ grant, key, idle: Number(idle) || 900, mode, lease, refused: refused !== undefined });

export const start = (root) => {
  const storage = safely(() => window.sessionStorage);
  const wait = (call, delay) => {
    const timer = window.setTimeout(call, delay);
    return () => window.clearTimeout(timer);
  };
  const now = () => Date.now();
  const every = (name) => document.querySelectorAll(`input[name="${name}"]`);
  const csrf = {
    get: () => every("csrfmiddlewaretoken")[0]?.value || "",
    set: (token) => every("csrfmiddlewaretoken").forEach((field) => (field.value = token)),
  };
  const view = new FormView(root, JSON.parse(document.getElementById(root.dataset.texts).textContent), storage);
  const editor = new Editor(view, options(root.dataset), storage, now);
  const client = new Client({
    editor, now, wait, csrf, mark: new Mark({ locks: navigator.locks, wait }),
    endpoint: root.dataset.endpoint, beat: Number(root.dataset.beat) || 20,
    fetch: (...request) => window.fetch(...request),
  });
  const soon = () => client.send();
  join(client, editor, view, root);
  addEventListener("pagehide", () => client.hide());
  addEventListener("pageshow", (event) => event.persisted && client.show());
  addEventListener("online", soon);
  addEventListener("focus", soon);
  document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && soon());
  client.start();
  return client;
};

const join = (client, editor, view, root) => {
  view.act = (action, detail) => {
    if (action === "reload") location.assign(root.dataset.endpoint); // no second POST of a refused form
    else if (action === "put_back") view.putBack();
    else if (action === "discard") view.drop();
    else if (editor.act(action, detail)) client.send();
  };
  const typed = (event) => {
    if (view.own(event.target)) return;
    view.sent = false;
    if (editor.input()) client.send();
  };
  view.form.addEventListener("input", typed);
  view.form.addEventListener("change", typed);
  view.form.addEventListener("keydown", () => editor.warned && editor.input());
  view.form.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (!event.target.closest("[data-distlock-cancel]")) return;
    client.give(editor.leave());
  });
  view.form.addEventListener("submit", (event) => {
    if (event.defaultPrevented) return;
    client.sent();
    view.sent = true;
    view.keep();
  });
  addEventListener("pagehide", () => editor.dirty && view.keep());
  view.offer();
};

if (typeof document !== "undefined") {
  const run = () => {
    document.querySelectorAll("form [data-distlock-edit]").forEach(start);
  };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", run);
  else run();
}
