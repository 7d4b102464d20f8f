// Counts what distlock-once.js lets through, and what it blocks. ?prevent: a script sends the form.
const query = new URLSearchParams(location.search);
const form = document.forms[0];
window.passed = 0;
window.blocked = 0;
form.addEventListener("distlock:blocked", () => (window.blocked += 1));
form.addEventListener("submit", async (event) => {
  window.passed += 1;
  if (!query.has("prevent")) return;
  event.preventDefault();
  if (query.get("prevent") !== "fetch") return;
  form.setAttribute("aria-busy", "true");
  await fetch(form.action, { method: "POST", body: new FormData(form, event.submitter) });
  form.removeAttribute("aria-busy");
});
addEventListener("pageshow", ({ persisted }) => (window.persisted = persisted));
window.ready = true;
