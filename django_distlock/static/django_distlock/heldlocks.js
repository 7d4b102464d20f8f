"use strict";
// The list of held locks: choosing all rows, and a list that refreshes itself. Listeners sit on what stays, because rows
// come and go.
document.addEventListener("DOMContentLoaded", () => {
  const KEPT = "django_distlock.refresh";
  const form = document.getElementById("changelist-form");
  const button = document.getElementById("distlock-refresh");
  const news = document.getElementById("distlock-news");
  const held = () => document.getElementById("distlock-held");
  const boxes = () => Array.from(form.querySelectorAll("input.action-select"));

  form.addEventListener("change", (event) => {
    if (event.target.id === "action-toggle") {
      boxes().forEach((box) => {
        box.checked = event.target.checked;
      });
    }
  });

  function say(text) {
    if (news.textContent !== text) {
      news.textContent = text;
    }
  }

  const on = () => button.getAttribute("aria-pressed") === "true";

  function turn(state) {
    button.setAttribute("aria-pressed", String(state));
    try {
      sessionStorage.setItem(KEPT, String(state));
    } catch (error) {
      // no storage: it is not remembered
    }
  }

  // The focus and what is chosen stay where they are, as far as their locks are still held.
  function swap(fresh) {
    const focused = document.activeElement.id;
    const chosen = boxes().filter((box) => box.checked).map((box) => box.id);
    const scrolled = form.querySelector(".results")?.scrollLeft ?? 0;
    const before = heading();
    held().replaceWith(document.adoptNode(fresh));
    chosen.map((id) => document.getElementById(id)).filter(Boolean).forEach((box) => {
      box.checked = true;
    });
    form.querySelector(".results")?.scrollTo({ left: scrolled });
    if (focused && document.activeElement.id !== focused) {
      (document.getElementById(focused) ?? button).focus({ preventScroll: true });
    }
    // said only when it changes: a screen reader would read it out every five seconds
    if (heading() !== before || news.textContent === button.dataset.failed) {
      say(heading());
    }
  }

  const heading = () => held().querySelector("caption, #distlock-none").textContent.trim();

  async function refresh() {
    try {
      const answer = await fetch(window.location.href, { headers: { "X-Distlock-Refresh": "1" } });
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("distlock-held");
      if (fresh && on()) {
        swap(fresh);
      } else if (!fresh && (answer.ok || answer.status === 403)) {
        turn(false);
        say(button.dataset.login);
      } else if (!fresh) {
        say(button.dataset.failed);
      }
    } catch (error) {
      say(button.dataset.failed);
    }
  }

  let timer = null;

  function plan(seconds = button.dataset.seconds) {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      if (on() && !document.hidden) {
        await refresh();
      }
      plan();
    }, Number(seconds) * 1000);
  }

  button.addEventListener("click", () => {
    turn(!on());
    say(on() ? button.dataset.on : button.dataset.off);
    plan();
  });
  document.addEventListener("visibilitychange", () => plan(0));
  button.hidden = false;
  try {
    turn(sessionStorage.getItem(KEPT) === "true");
  } catch (error) {
    turn(false);
  }
  plan();
});
