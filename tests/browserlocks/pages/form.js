// Counts what distlock-once.js lets through, and what it blocks. ?prevent: a script sends the form.
const prevent = new URLSearchParams(location.search).get("prevent");
const form = document.forms[0];
Object.assign(window, { passed: 0, blocked: 0 });
form.addEventListener("distlock:blocked", () => (window.blocked += 1));
form.addEventListener("submit", async (event) => {
  window.passed += 1;
  if (!prevent) return;
  event.preventDefault();
  if (prevent !== "fetch") return;
  form.setAttribute("aria-busy", "true");
  await fetch(form.action, { method: "POST", body: new FormData(form, event.submitter) });
  form.removeAttribute("aria-busy");
});
window.ready = true;
