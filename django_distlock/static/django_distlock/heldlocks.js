/*global gettext, ngettext, interpolate*/
"use strict";
// The list of held locks: choosing rows, and a list that refreshes itself. Every listener sits on what stays, because
// rows come and go.
{
  const KEPT = "django_distlock.refresh";
  const REGIONS = ["#distlock-errors", ".results", "#distlock-none", ".paginator", "#toolbar .small.quiet"];
  const FOCUSABLE = "a[href], button, input, select";

  // --- choosing rows

  function boxes(form) {
    return Array.from(form.querySelectorAll("input.action-select"));
  }

  function showChosen(form) {
    const all = boxes(form);
    const chosen = all.filter((box) => box.checked);
    all.forEach((box) => box.closest("tr").classList.toggle("selected", box.checked));
    const toggle = form.querySelector("#action-toggle");
    if (toggle) {
      toggle.checked = all.length > 0 && chosen.length === all.length;
      toggle.disabled = all.length === 0;
    }
    const counter = form.querySelector(".action-counter");
    if (counter && window.ngettext) {
      const text = ngettext("%(sel)s of %(cnt)s selected", "%(sel)s of %(cnt)s selected", chosen.length);
      counter.textContent = interpolate(text, { sel: chosen.length, cnt: all.length }, true);
    }
  }

  function watchChoices(form) {
    let last = null;
    let range = false;
    form.addEventListener("click", (event) => {
      range = event.shiftKey;
    });
    form.addEventListener("change", (event) => {
      const all = boxes(form);
      if (event.target.id === "action-toggle") {
        all.forEach((box) => {
          box.checked = event.target.checked;
        });
      } else if (event.target.classList.contains("action-select")) {
        const [from, to] = [all.indexOf(last), all.indexOf(event.target)].sort((a, b) => a - b);
        if (range && from >= 0) {
          all.slice(from, to + 1).forEach((box) => {
            box.checked = event.target.checked;
          });
        }
        last = event.target;
      } else {
        return;
      }
      showChosen(form);
    });
    window.addEventListener("pageshow", () => showChosen(form));
    showChosen(form);
  }

  // --- keeping one's place in a list that is replaced

  function rowOf(element) {
    const row = element.closest("#result_list tbody tr");
    const mark = row && row.querySelector("input.action-select, [data-row]");
    return mark ? mark.value || mark.dataset.row : row && row.querySelector("a").href;
  }

  function placeOf(element) {
    const region = element && REGIONS.find((selector) => element.closest(selector));
    if (!region) {
      return null;
    }
    const row = rowOf(element);
    const around = row ? element.closest("tr") : element.closest(region);
    return { region, row, index: Array.from(around.querySelectorAll(FOCUSABLE)).indexOf(element) };
  }

  function focusOn(place) {
    const region = document.querySelector(place.region);
    const rows = region ? Array.from(region.querySelectorAll("#result_list tbody tr")) : [];
    const around = place.row ? rows.find((row) => rowOf(row.firstElementChild) === place.row) : region;
    const element = around ? around.querySelectorAll(FOCUSABLE)[place.index] : null;
    // its row has gone: stay in the list, and do not fall back to the top of the page
    (element || document.getElementById("distlock-refresh")).focus({ preventScroll: true });
  }

  function swap(fresh) {
    const form = document.getElementById("changelist-form");
    const place = placeOf(document.activeElement);
    const chosen = new Set(boxes(form).filter((box) => box.checked).map((box) => box.value));
    const results = form.querySelector(".results");
    const scrolled = results ? results.scrollLeft : 0;
    const [left, top] = [window.scrollX, window.scrollY];
    REGIONS.forEach((selector) => {
      const now = document.querySelector(selector);
      const next = fresh.querySelector(selector);
      if (now && next) {
        now.replaceWith(document.adoptNode(next));
      } else if (now) {
        now.remove();
      } else if (next) {
        insert(selector, document.adoptNode(next));
      }
    });
    boxes(form).forEach((box) => {
      box.checked = chosen.has(box.value);
    });
    if (form.querySelector(".results")) {
      form.querySelector(".results").scrollLeft = scrolled;
    }
    showChosen(form);
    if (place) {
      focusOn(place);
    }
    window.scrollTo(left, top);
  }

  function insert(selector, element) {
    if (selector.startsWith("#toolbar")) {
      document.querySelector("#toolbar form > div").append(element);
      return;
    }
    const form = document.getElementById("changelist-form");
    const end = form.querySelector(".changelist-footer, .paginator");
    form.insertBefore(element, end && end.parentNode === form ? end : null);
  }

  // --- refreshing

  function watchRefresh(button, news) {
    let timer = null;
    let asking = null;
    let count = null;

    const isOn = () => button.getAttribute("aria-pressed") === "true";

    function say(text) {
      if (news.textContent !== text) {
        news.textContent = text;
      }
    }

    function plan() {
      clearTimeout(timer);
      timer = null;
      if (isOn() && !document.hidden) {
        timer = setTimeout(refresh, Number(button.dataset.seconds) * 1000);
      }
    }

    async function refresh() {
      asking = new AbortController();
      try {
        const answer = await fetch(window.location.href, {
          signal: asking.signal,
          credentials: "same-origin",
          headers: { "X-Distlock-Refresh": "1" },
        });
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        if (!isOn() || document.hidden) {
          return;
        }
        if (!page.getElementById("changelist-form")) {
          if (answer.ok || answer.status === 403) {
            turn(false);
            say(button.dataset.login);
          } else {
            say(button.dataset.failed);
          }
          return;
        }
        swap(page);
        tellCount();
      } catch (error) {
        if (error.name !== "AbortError") {
          say(button.dataset.failed);
        }
      } finally {
        asking = null;
        plan();
      }
    }

    // Said only when it changes: a screen reader would read it out every five seconds.
    function tellCount() {
      const caption = document.querySelector("#result_list caption, #distlock-none");
      const text = caption ? caption.textContent.trim() : "";
      if (text !== count || news.textContent === button.dataset.failed) {
        say(text);
      }
      count = text;
    }

    function turn(on) {
      button.setAttribute("aria-pressed", String(on));
      try {
        sessionStorage.setItem(KEPT, on ? "on" : "off");
      } catch (error) {
        // no storage: it is not remembered
      }
      if (!on && asking) {
        asking.abort();
      }
      plan();
    }

    button.addEventListener("click", () => {
      turn(!isOn());
      say(isOn() ? button.dataset.on : button.dataset.off);
    });
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) {
        plan();
      } else if (isOn() && !asking) {
        clearTimeout(timer);
        refresh();
      }
    });
    window.addEventListener("pagehide", () => clearTimeout(timer));
    window.addEventListener("pageshow", plan);
    button.hidden = false;
    try {
      turn(sessionStorage.getItem(KEPT) === "on");
    } catch (error) {
      turn(false);
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const form = document.getElementById("changelist-form");
    if (!form) {
      return;
    }
    watchChoices(form);
    watchRefresh(document.getElementById("distlock-refresh"), document.getElementById("distlock-news"));
  });
}
