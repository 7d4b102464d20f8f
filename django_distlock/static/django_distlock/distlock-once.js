/* <form data-distlock-once>: the second submit event of a double click goes nowhere.

   The buttons stay enabled, because a disabled one loses its value and the focus. The form can be submitted again when
   its page comes back (back/forward cache, or a load), and after data-distlock-once="30" seconds, for answers that
   leave the page where it is: downloads, and 204.

   A script that submits the form by itself (htmx, Turbo, fetch) calls preventDefault. So does a check that refuses the
   form, and nothing tells the two apart: then the form can be submitted again after a second, but not while it has
   aria-busy="true" (Turbo sets it) or the class htmx-request. A script that uses fetch sets aria-busy.

   A blocked form gets the event distlock:blocked. form.submit() fires no submit event and is not seen. */

const DOUBLE_CLICK = 1000;
let again = new WeakMap(); // form -> when it can be submitted again, in milliseconds

const busy = (form) => form.getAttribute("aria-busy") === "true" || form.classList.contains("htmx-request");

/* Another window, or <dialog>. */
const stays = (form, button) => {
  const [target, method] = ["target", "method"].map((name) => button?.getAttribute(`form${name}`) ?? form.getAttribute(name));
  return method?.toLowerCase() === "dialog" || !/^(_self|_top|_parent)?$/i.test(target ?? "");
};

const submitted = (event) => {
  const form = event.target;
  const seconds = form.getAttribute("data-distlock-once");
  if (seconds === null) return;
  const now = performance.now();
  if (now < again.get(form) || busy(form)) {
    event.preventDefault();
    event.stopImmediatePropagation();
    form.dispatchEvent(new CustomEvent("distlock:blocked", { bubbles: true }));
    return;
  }
  again.set(form, now + (stays(form, event.submitter) ? DOUBLE_CLICK : Number(seconds) * 1000 || Infinity));
  // after the listeners of the page
  setTimeout(() => event.defaultPrevented && again.set(form, now + DOUBLE_CLICK));
};

addEventListener("submit", submitted, true);
addEventListener("pageshow", ({ persisted }) => persisted && (again = new WeakMap()));
