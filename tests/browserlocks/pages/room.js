// A page under test: sections of code under a lock, which the test begins, ends and looks at.
import { LockManager } from "/static/django_distlock/distlock.js";

const { name, grant, test } = document.querySelector("#room").dataset;
const options = new URLSearchParams(location.search);
const me = options.get("who") ?? "somebody";
// servers let hidden tabs ask seldom, and all are hidden here but the one in front; those of WebKit are always hidden
if (!options.has("hidden")) Object.defineProperty(document, "visibilityState", { value: "visible" });
const locks = new LockManager({ endpoint: "/distlock/", events: "auto" });
const sections = {};

// keepalive: it is told even if the page goes
const tell = (verb, who, lock) => {
  const fence = lock?.fence === undefined ? "" : `&fence=${lock.fence}`;
  return fetch(`/ledger/${name}/${verb}/?test=${test}&who=${who}${fence}`, { method: "POST", keepalive: true });
};
const asked = (scope) => (scope === "browser" ? name : grant);

/* A section that goes on until finish(who), or until its lock is lost. Times are Date.now(): the time origins of two
   pages may lie as far apart as the start of one was interrupted. */
const take = (who = me, wanted = {}) => {
  const section = (sections[who] = { state: "waiting" });
  const work = async (lock) => {
    Object.assign(section, { lock, heldAt: Date.now() });
    if (!lock) return (section.state = "null");
    const over = new Promise((resolve) => {
      section.finish = resolve;
      lock.signal.addEventListener("abort", () => {
        Object.assign(section, { state: `lost: ${lock.signal.reason.reason}`, lostAt: Date.now() });
        resolve();
      });
    });
    await tell("enter", who, lock);
    if (section.state === "waiting") section.state = "held";
    await over;
    const told = tell("leave", who);
    if (lock.signal.reason?.reason !== "page") await told; // Firefox never answers a request of a page that goes
  };
  const failed = ({ name, reason, message }) => Object.assign(section, { end: `${name}: ${reason ?? message}`, message });
  locks.request(asked(wanted.scope), wanted, work).then(() => (section.end = "ended"), failed);
};
const finish = (who = me) => sections[who].finish();

/* Many short sections, one after the other. The ledger says what a lost lock has cost. */
const race = async (rounds, wanted = {}) => {
  for (let round = 0; round < rounds; round += 1) {
    const who = `${me}-${round}`;
    const work = async (lock) => {
      await tell("enter", who, lock);
      await tell("leave", who);
    };
    await locks.request(asked(wanted.scope), wanted, work).catch((error) => {
      if (error.name !== "LockLostError") throw error;
    });
  }
};

addEventListener("pageshow", ({ persisted }) => (window.persisted = persisted));
Object.assign(window, { locks, grant, sections, take, finish, race, ready: true });
