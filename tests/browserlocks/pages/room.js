// A page under test: sections of code under a lock, which the test begins, ends and looks at.
import { LockManager } from "/static/django_distlock/distlock.js";

const { name, grant, test } = document.querySelector("#room").dataset;
const options = new URLSearchParams(location.search);
const me = options.get("who") ?? "somebody";
// servers let hidden tabs ask seldom, and all are hidden here but the one in front; those of WebKit are always hidden
if (!options.has("hidden")) Object.defineProperty(document, "visibilityState", { value: "visible" });
const settle = options.has("settle") ? { settle: Number(options.get("settle")) } : {};
const locks = new LockManager({ endpoint: "/distlock/", events: options.get("events") !== "0" && "auto", ...settle });
const sections = {};

// keepalive: it is told even if the page goes
const tell = (verb, who, lock) => {
  const fence = lock?.fence === undefined ? "" : `&fence=${lock.fence}`;
  return fetch(`/ledger/${name}/${verb}/?test=${test}&who=${who}${fence}`, { method: "POST", keepalive: true });
};

// What a lock is asked for: the grant of the page, or its name.
const asked = (scope) => (scope === "browser" ? name : grant);

/* A section that goes on until finish(who), or until its lock is lost. Times are Date.now(): the time origins of two
   pages may lie as far apart as the start of one was interrupted. */
const take = (who = me, wanted = {}) => {
  const section = (sections[who] = { state: "waiting" });
  locks
    .request(asked(wanted.scope), wanted, async (lock) => {
      section.lock = lock;
      section.heldAt = Date.now();
      if (!lock) {
        section.state = "null";
        return;
      }
      const over = new Promise((resolve) => {
        section.finish = resolve;
        lock.signal.addEventListener("abort", () => {
          section.state = `lost: ${lock.signal.reason.reason}`;
          section.lostAt = Date.now();
          resolve();
        });
      });
      await tell("enter", who, lock);
      if (section.state === "waiting") section.state = "held";
      await over;
      // Firefox: a request of a page that goes is never answered
      const told = tell("leave", who);
      if (lock.signal.reason?.reason !== "page") await told;
    })
    .then(
      () => (section.end = "ended"),
      (error) => Object.assign(section, { end: `${error.name}: ${error.reason ?? error.message}`, message: error.message }),
    );
};
const finish = (who = me) => sections[who].finish();

/* Many short sections, one after the other. */
const race = async (rounds, wanted = {}) => {
  window.raced = 0;
  while (window.raced < rounds) {
    const who = `${me}-${window.raced}`;
    await locks
      .request(asked(wanted.scope), wanted, async (lock) => {
        await tell("enter", who, lock);
        await tell("leave", who);
      })
      .catch((error) => {
        if (error.name !== "LockLostError") throw error; // the ledger says what that has cost
      });
    window.raced += 1;
  }
};

addEventListener("pageshow", ({ persisted }) => (window.persisted = persisted));
Object.assign(window, { locks, grant, sections, take, finish, race, ready: true });
