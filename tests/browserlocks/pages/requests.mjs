// distlock.js under Node, with a lock server that is a function. Prints what the test compares.
globalThis.addEventListener ??= () => {};
globalThis.location = { href: "http://testserver/" };
const { LockManager } = await import(process.argv[2]);

const LIFE = 2.4; // seconds
let busy = true;
const asked = new Set(); // the ttl of each renewal of "short"
const answer = (path, body) => {
  if (path.endsWith("/release/")) return [204, {}];
  if (path.endsWith("/renew/")) for (const { grant, ttl } of body.leases) if (grant === "short") asked.add(ttl);
  if (path.endsWith("/renew/"))
    return body.leases.length > 100 ? [400, {}] : [200, { leases: body.leases.map(({ id }) => ({ id, expires_in: LIFE })) }];
  return busy ? [409, { holder: "Bo", place: 0, retry_after: 0.2 }] : [201, { id: body.id, fence: 5, expires_in: LIFE }];
};
// as window.fetch, which must not be called as a method of another object
const fetch = async function (url, init) {
  if (this !== undefined && this !== globalThis) throw new TypeError("Illegal invocation");
  const [status, facts] = answer(new URL(url).pathname, init.body && JSON.parse(init.body));
  return { status, headers: new Headers({ "Content-Type": "application/json" }), json: async () => facts };
};
const pause = (ms, value) => new Promise((resolve) => setTimeout(resolve, ms, value));
const locks = new LockManager({ endpoint: "/distlock/", csrf: "token", fetch, events: false });

const waits = {};
for (const timeout of [undefined, null, Infinity, 2 ** 31, 100]) {
  const ended = locks.hold("grant", { timeout }).catch((error) => error.name);
  waits[timeout] = await Promise.race([ended, pause(300, "waits")]);
}
busy = false;
const held = [];
for (let number = 0; number < 130; number += 1) held.push(await locks.hold(`grant ${number}`));
await locks.hold("short", { ttl: 1500 });
await pause(LIFE * 1500);
console.log(JSON.stringify({ waits, lost: held.filter(({ signal }) => signal.aborted).length, asked: [...asked] }));
process.exit(0);
