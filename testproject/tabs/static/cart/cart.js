/* One tab at a time holds the cart. The server checks it again at each change. */
const cart = document.querySelector("#cart");
const { LockManager } = await import(cart.dataset.distlock);

const show = (selector, text) => (document.querySelector(selector).textContent = text);
const locks = new LockManager({ endpoint: "/distlock/" });
const tab = (sessionStorage.tab ||= Math.random().toString(36).slice(2, 5).toUpperCase());
const token = cart.querySelector("[name=csrfmiddlewaretoken]").value;
const handOn = document.querySelector("#hand-on");
let lock = null; // what this tab holds now
let headers = {}; // of the newest lock, also when it is no longer held
let waiting = false;
show("#tab", tab);

const say = (state, text, facts = "") => {
  document.querySelector("#lock").dataset.state = state;
  show("#lock", text);
  show("#facts", facts);
  for (const button of cart.querySelectorAll("[data-item]")) button.setAttribute("aria-disabled", String(state !== "held"));
  handOn.textContent = state === "held" ? "Hand it on" : "Ask for it";
  handOn.setAttribute("aria-disabled", String(state === "waiting"));
};

const ask = async () => {
  waiting = true;
  say("waiting", "Asking for the cart ...");
  try {
    lock = await locks.hold(cart.dataset.grant);
  } catch (error) {
    return say("lost", `This tab cannot have the cart: ${error.message}`);
  } finally {
    waiting = false;
  }
  headers = lock.headers;
  say("held", "This tab may change the cart.", `Fence ${lock.fence}; guarantee "${lock.guarantee}".`);
  lock.signal.addEventListener("abort", () => {
    say("lost", `This tab has lost the cart: ${lock.signal.reason.message}`);
    lock = null;
  });
};

const change = async (item, sent) => {
  const body = new URLSearchParams({ item, tab });
  const answer = await fetch(cart.dataset.change, { method: "POST", headers: { "X-CSRFToken": token, ...sent }, body });
  show(
    "#answer",
    answer.ok ? `204: one more ${item}.` : `${answer.status}: refused. ${answer.status === 423 ? "This tab does not have the cart now." : ""}`,
  );
  await refresh();
};

const refresh = async () => {
  const answer = await fetch(cart.dataset.state);
  if (!answer.ok) return;
  const { lines, ledger } = await answer.json();
  for (const [item, quantity] of Object.entries(lines))
    cart.querySelector(`[data-quantity="${item}"]`).textContent = quantity;
  document.querySelector("#ledger tbody").replaceChildren(
    ...ledger.map((entry) => {
      const row = document.createElement("tr");
      const cells = [entry.at, entry.tab, entry.asked, entry.fence ?? "none", entry.status < 400 ? "done" : `${entry.status} refused`];
      for (const text of cells) row.insertCell().textContent = text;
      row.lastChild.className = entry.status < 400 ? "done" : "refused";
      return row;
    }),
  );
};

/* Who has the cart, and how many are ahead of this tab. */
const look = async () => {
  if (waiting) {
    const [own] = (await locks.query()).pending;
    if (waiting && own?.holder)
      say("waiting", `${own.holder} has the cart, in another tab or browser.`, own.place ? `${own.place} more in line before this tab.` : "This tab is the next one.");
  }
  await refresh();
};

cart.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (!button || button.getAttribute("aria-disabled") === "true") return;
  if (button.dataset.item) change(button.dataset.item, lock.headers);
  if (button.id === "late") change("Teapot", lock ? {} : headers);
  if (button.id === "hand-on" && lock) {
    lock.release();
    lock = null;
    say("free", "This tab has handed the cart on.");
  } else if (button.id === "hand-on") ask();
});

ask();
refresh();
setInterval(() => look().catch(() => {}), 1000);
addEventListener("pageshow", ({ persisted }) => persisted && !lock && ask());
